"""Training steps of whole stacks of blocks: one document at a time, padded, packed, and packed in mamba-ssm's block."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.bench.stacks.page import StacksPlot, table
    from packproof.bench.stacks.report import StacksFile, StacksReport, is_of_stacks
    from packproof.bench.stacks.run import StacksRequest, run_stacks
    from packproof.bench.stacks.shapes import CAPACITY, MODES, SHAPES, models, modes

__all__ = [
    "CAPACITY",
    "MODES",
    "SHAPES",
    "StacksFile",
    "StacksPlot",
    "StacksReport",
    "StacksRequest",
    "is_of_stacks",
    "models",
    "modes",
    "run_stacks",
    "table",
]

export(
    sys.modules[__name__],
    {
        "packproof.bench.stacks.page": ("StacksPlot", "table"),
        "packproof.bench.stacks.report": ("StacksFile", "StacksReport", "is_of_stacks"),
        "packproof.bench.stacks.run": ("StacksRequest", "run_stacks"),
        "packproof.bench.stacks.shapes": ("CAPACITY", "MODES", "SHAPES", "models", "modes"),
    },
)
