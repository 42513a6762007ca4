"""Shared by the whole suite: one torch thread, a working folder, and what detected each bug of the museum."""

import contextlib
import gc
import importlib
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch


def pytest_configure() -> None:
    """Tensors are small here and pytest-xdist has a worker for each core: more threads only contend for them.

    Neither does a process that a test starts: two threads of torch that share a core wait for each other by spinning.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay until the end, and each collection of garbage would walk all of them.

    That took a third of the time of test_size.py, test_vacuity.py and test_own_ops.py: a call that needs much memory
    collects garbage. In a kernel's own process modules are frozen too (`fast_imports`).
    """
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """No test leaves a mode of torch on: each call of all later ones would go through it."""
    yield
    assert not torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack(), item.nodeid


@pytest.fixture(scope="session", autouse=True)
def _oracle_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Built-in ops have their answers from files, which the workers of pytest-xdist share."""
    from tests.oracle_answers import saved_answers  # noqa: PLC0415  (numerics.py of the interpreter is imported first)

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "oracle_answers"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packproof.properties.judgement.kernel_under_test.oracle_answer", saved_answers(folder))
        yield


@pytest.fixture
def working_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder of the test's own, in which it runs: reports and replay files are written there."""
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check has all cores, as outside of pytest-xdist, and divides its cells among them."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)


@pytest.fixture
def no_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run without walls: they write files by which a test follows them."""
    monkeypatch.setattr("packproof.harness.process.zygote_client._isolation", "none")


@pytest.fixture
def cuda_available(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """`cuda_available(False)`: torch sees no CUDA device, whatever the machine has."""
    return lambda there: monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


@pytest.fixture
def free_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`free_memory(10**6)`: a device on which an allocation failed has so many bytes free."""
    device = "packproof.harness.process.execution.device"
    return lambda count: monkeypatch.setattr(f"{device}.free_bytes", lambda _device: count)


@pytest.fixture
def fake_check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """`fake_check(run)`: commands, the plugin and `packproof.check` get the events of `run` in place of a check's."""

    def replace_check(run: Callable[..., Any]) -> None:
        for module in ("packproof.harness.check", "packproof.harness.check.check"):
            monkeypatch.setattr(importlib.import_module(module), "run_check", run)

    return replace_check


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The rows that tests/quality/test_museum.py recorded; they cross from xdist's workers as user properties."""
    rows = dict(_recorded(terminalreporter, "detection"))
    if not rows:
        return
    terminalreporter.section("museum")
    for bug, row in rows.items():
        by = row["by"] or "NOT DETECTED"
        terminalreporter.line(f"{bug:<6}{by:<14}{row['examples']:>4} examples{row['seconds']:>7.1f} s")
    seconds = [row["seconds"] for row in rows.values()]
    terminalreporter.line(f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s")


def _recorded(terminalreporter: Any, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if isinstance(report, pytest.TestReport):
                rows: list[tuple[str, Any]] = report.user_properties
                yield from ((row["bug"], row) for name, row in rows if name == kind)
