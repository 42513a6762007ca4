"""The garbage collector leaves out what exists before the first test."""

import gc


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay until the end, and each collection would walk all of them.

    That took a third of the time of test_size.py, test_vacuity.py and test_own_ops.py: a call that needs much memory
    collects garbage. In a kernel's own process modules are frozen too (`fast_imports`).
    """
    gc.freeze()
