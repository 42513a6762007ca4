"""The calls of the tests of processes, here in one process."""

from tests.harness.conftest import make_call

__all__ = ["make_call"]
