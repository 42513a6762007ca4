"""Shared by the whole suite: one torch thread, a working folder, and what detected each bug of the museum."""

import contextlib
import os
import statistics
from collections.abc import Iterator
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


@pytest.fixture
def working_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder of the test's own, in which it runs: reports and replay files are written there."""
    with contextlib.chdir(tmp_path):
        yield tmp_path


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
