"""The proof of a module around its kernels: each document of a pack computes as if it were alone."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.models.check import check_module, run_module_check
    from packproof.models.guard import guard
    from packproof.models.outcomes import (
        ConventionOutcome,
        Key,
        OutcomeTable,
        Word,
        holding_conventions,
        key_of,
        outcome_of,
        outcomes_of,
    )
    from packproof.models.replay import replay
    from packproof.models.request import module_request
    from packproof.models.subjects.conventions import CONVENTIONS, Convention
    from packproof.models.subjects.pack import Pack

__all__ = [
    "CONVENTIONS",
    "Convention",
    "ConventionOutcome",
    "Key",
    "OutcomeTable",
    "Pack",
    "Word",
    "check_module",
    "guard",
    "holding_conventions",
    "key_of",
    "module_request",
    "outcome_of",
    "outcomes_of",
    "replay",
    "run_module_check",
]

export(
    sys.modules[__name__],
    {
        "packproof.models.check": ("check_module", "run_module_check"),
        "packproof.models.subjects.conventions": ("CONVENTIONS", "Convention"),
        "packproof.models.subjects.pack": ("Pack",),
        "packproof.models.guard": ("guard",),
        "packproof.models.outcomes": (
            "ConventionOutcome",
            "Key",
            "OutcomeTable",
            "Word",
            "holding_conventions",
            "key_of",
            "outcome_of",
            "outcomes_of",
        ),
        "packproof.models.replay": ("replay",),
        "packproof.models.request": ("module_request",),
    },
)
