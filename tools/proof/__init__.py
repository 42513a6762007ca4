"""How good the checks are: museum, correct kernels, mutants, and one report on all of them."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.proof.proof_report import markdown, report

__all__ = ["markdown", "report"]

export(
    sys.modules[__name__],
    {
        "packproof.proof.proof_report": ("markdown", "report"),
    },
)
