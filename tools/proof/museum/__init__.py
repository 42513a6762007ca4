"""The bugs of the museum, the correct kernels and the rogues, run under the checks to measure them."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.proof.museum.alarms import ALARM_DTYPES, judge_controls
    from packproof.proof.museum.detect import run_entries
    from packproof.proof.museum.memory_group import NoControlGroupError
    from packproof.proof.museum.recipes import compare
    from packproof.proof.museum.rogues import DEFENDED, try_rogues
    from packproof.proof.museum.soak import run_soak, soak_lines
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
    from packproof.proof.museum.throwaway_root import ThrowawayRootError

__all__ = [
    "ALARM_DTYPES",
    "DEFENDED",
    "NoControlGroupError",
    "ThrowawayRootError",
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
    "run_soak",
    "shown",
    "soak_lines",
    "summary",
    "try_rogues",
]

export(
    sys.modules[__name__],
    {
        "packproof.proof.museum.alarms": ("ALARM_DTYPES", "judge_controls"),
        "packproof.proof.museum.detect": ("run_entries",),
        "packproof.proof.museum.recipes": ("compare",),
        "packproof.proof.museum.memory_group": ("NoControlGroupError",),
        "packproof.proof.museum.rogues": ("DEFENDED", "try_rogues"),
        "packproof.proof.museum.soak": ("run_soak", "soak_lines"),
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
        "packproof.proof.museum.throwaway_root": ("ThrowawayRootError",),
    },
)
