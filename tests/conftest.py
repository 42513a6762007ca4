"""What the whole suite shares: one torch thread, and at its end the kill matrix of the planted bugs by property."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from packproof.properties.catalogue import PROPERTIES


def pytest_configure() -> None:
    """Tensors are small here and pytest-xdist has a worker for each core: more threads only wait for each other."""
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The rows that tests/quality/test_kill_matrix.py recorded; they cross from xdist's workers as user properties."""
    rows = dict(_recorded(terminalreporter, "kills"))
    if not rows:
        return
    terminalreporter.section("kill matrix")
    terminalreporter.line(
        "after how many golden cases each property convicts a planted bug; - it passes, . not applicable"
    )
    terminalreporter.line("      " + " ".join(f"{name[:11]:>11}" for name in PROPERTIES) + "   convicted after")
    for bug, row in rows.items():
        cells = " ".join(f"{row['after'].get(name, '.'):>11}" for name in PROPERTIES)
        terminalreporter.line(f"{bug:<6}{cells}   {row['seconds']:.1f} s")
    slowest = max(rows, key=lambda bug: rows[bug]["seconds"])
    terminalreporter.line(f"longest time to conviction: {rows[slowest]['seconds']:.1f} s ({slowest})")


def _recorded(terminalreporter: Any, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if isinstance(report, pytest.TestReport):
                for name, value in report.user_properties:
                    if name == kind:
                        yield value["bug"], value
