"""The stages of a check: request, target, plan, schedule, unit, cell, failure. Also replay: run one case again."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.check.check import check, run_check
    from packproof.harness.check.own_faults import errors_as_verdicts, inconclusive_verdicts
    from packproof.harness.check.partition import Unit
    from packproof.harness.check.plan import plan
    from packproof.harness.check.replay import ReplayOutcome, ReplayStatus, check_fits, replay, require_arguments
    from packproof.harness.check.request import (
        OPTIONS,
        PROFILES,
        TIME_LIMITS,
        CheckRequest,
        checked,
        validate,
        value_from_text,
    )
    from packproof.harness.check.rounds import rounds
    from packproof.harness.check.schedule import run_plan

__all__ = [
    "OPTIONS",
    "PROFILES",
    "TIME_LIMITS",
    "CheckRequest",
    "ReplayOutcome",
    "ReplayStatus",
    "Unit",
    "check",
    "check_fits",
    "checked",
    "errors_as_verdicts",
    "inconclusive_verdicts",
    "plan",
    "replay",
    "require_arguments",
    "rounds",
    "run_check",
    "run_plan",
    "validate",
    "value_from_text",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.check.check": ("check", "run_check"),
        "packproof.harness.check.own_faults": ("errors_as_verdicts", "inconclusive_verdicts"),
        "packproof.harness.check.partition": ("Unit",),
        "packproof.harness.check.plan": ("plan",),
        "packproof.harness.check.replay": (
            "ReplayOutcome",
            "ReplayStatus",
            "check_fits",
            "replay",
            "require_arguments",
        ),
        "packproof.harness.check.request": (
            "CheckRequest",
            "OPTIONS",
            "PROFILES",
            "TIME_LIMITS",
            "checked",
            "validate",
            "value_from_text",
        ),
        "packproof.harness.check.rounds": ("rounds",),
        "packproof.harness.check.schedule": ("run_plan",),
    },
)
