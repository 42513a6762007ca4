"""The backtest: how many of the field's own fixes packproof would have detected, at the commit before each."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.proof.backtest.commits import Clones
    from packproof.proof.backtest.entries import cases, selected
    from packproof.proof.backtest.page import as_markdown, line, summary
    from packproof.proof.backtest.refactorings import refactorings, selected_refactorings
    from packproof.proof.backtest.run import append_outcome, merged, read_outcomes, run_cases
    from packproof.proof.backtest.thin_clones import write_thin_clones

__all__ = [
    "Clones",
    "append_outcome",
    "as_markdown",
    "cases",
    "line",
    "merged",
    "read_outcomes",
    "refactorings",
    "run_cases",
    "selected",
    "selected_refactorings",
    "summary",
    "write_thin_clones",
]

export(
    sys.modules[__name__],
    {
        "packproof.proof.backtest.commits": ("Clones",),
        "packproof.proof.backtest.entries": ("cases", "selected"),
        "packproof.proof.backtest.page": ("as_markdown", "line", "summary"),
        "packproof.proof.backtest.refactorings": ("refactorings", "selected_refactorings"),
        "packproof.proof.backtest.run": ("append_outcome", "merged", "read_outcomes", "run_cases"),
        "packproof.proof.backtest.thin_clones": ("write_thin_clones",),
    },
)
