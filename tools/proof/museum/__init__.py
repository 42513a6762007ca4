"""The bugs of the museum, the correct kernels and the rogues, run under the checks to measure them."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.proof.museum.alarms import ALARM_DTYPES, judge_controls
    from packproof.proof.museum.detect import run_entries
    from packproof.proof.museum.recipes import compare
    from packproof.proof.museum.rogues import DEFENDED, try_rogues
    from packproof.proof.museum.table import (
        as_json,
        compared,
        compared_json,
        control_line,
        controls_json,
        controls_summary,
        listed,
        outcome,
        shown,
        summary,
    )

__all__ = [
    "ALARM_DTYPES",
    "DEFENDED",
    "as_json",
    "compare",
    "compared",
    "compared_json",
    "control_line",
    "controls_json",
    "controls_summary",
    "judge_controls",
    "listed",
    "outcome",
    "run_entries",
    "shown",
    "summary",
    "try_rogues",
]

export(
    sys.modules[__name__],
    {
        "packproof.proof.museum.alarms": ("ALARM_DTYPES", "judge_controls"),
        "packproof.proof.museum.detect": ("run_entries",),
        "packproof.proof.museum.recipes": ("compare",),
        "packproof.proof.museum.rogues": ("DEFENDED", "try_rogues"),
        "packproof.proof.museum.table": (
            "as_json",
            "compared",
            "compared_json",
            "control_line",
            "controls_json",
            "controls_summary",
            "listed",
            "outcome",
            "shown",
            "summary",
        ),
    },
)
