"""The results of a check as frozen data, and their wording: events, coverage, error maps, report files."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.report.coverage import NOT_KERNEL_REFUSALS, SOURCE_LINE, Coverage, refusal_key
    from packproof.harness.report.events import (
        Cell,
        CellFinished,
        CellStarted,
        Event,
        Failure,
        FailureFound,
        Progress,
        RunFinished,
        RunStarted,
        Status,
        Tier,
        Timings,
        Verdict,
    )
    from packproof.harness.report.failed import CheckFailed

__all__ = [
    "NOT_KERNEL_REFUSALS",
    "SOURCE_LINE",
    "Cell",
    "CellFinished",
    "CellStarted",
    "CheckFailed",
    "Coverage",
    "Event",
    "Failure",
    "FailureFound",
    "Progress",
    "RunFinished",
    "RunStarted",
    "Status",
    "Tier",
    "Timings",
    "Verdict",
    "refusal_key",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.report.coverage": ("Coverage", "NOT_KERNEL_REFUSALS", "SOURCE_LINE", "refusal_key"),
        "packproof.harness.report.events": (
            "Cell",
            "CellFinished",
            "CellStarted",
            "Event",
            "Failure",
            "FailureFound",
            "Progress",
            "RunFinished",
            "RunStarted",
            "Status",
            "Tier",
            "Timings",
            "Verdict",
        ),
        "packproof.harness.report.failed": ("CheckFailed",),
    },
)
