"""Mutation testing: edits of a kernel's source, and the check that detects each."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.proof.mutants.equivalents import find_explanations
    from packproof.proof.mutants.killers import killers_text, read_killers
    from packproof.proof.mutants.mutant import all_mutants
    from packproof.proof.mutants.run import OPS, run, sample
    from packproof.proof.mutants.table import as_json, listed, summary, survived, wrongly_explained

__all__ = [
    "OPS",
    "all_mutants",
    "as_json",
    "find_explanations",
    "killers_text",
    "listed",
    "read_killers",
    "run",
    "sample",
    "summary",
    "survived",
    "wrongly_explained",
]

export(
    sys.modules[__name__],
    {
        "packproof.proof.mutants.equivalents": ("find_explanations",),
        "packproof.proof.mutants.killers": ("killers_text", "read_killers"),
        "packproof.proof.mutants.mutant": ("all_mutants",),
        "packproof.proof.mutants.run": ("OPS", "run", "sample"),
        "packproof.proof.mutants.table": ("as_json", "listed", "summary", "survived", "wrongly_explained"),
    },
)
