"""Small versions of the causal language models of transformers, and whether they isolate packed documents."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.models.board.board import Built, run_board
    from packproof.models.board.page import as_json, as_markdown, board_counts, make_board, outcome_line, read_board
    from packproof.models.board.tiny import architectures

__all__ = [
    "Built",
    "architectures",
    "as_json",
    "as_markdown",
    "board_counts",
    "make_board",
    "outcome_line",
    "read_board",
    "run_board",
]

export(
    sys.modules[__name__],
    {
        "packproof.models.board.board": ("Built", "run_board"),
        "packproof.models.board.page": (
            "as_json",
            "as_markdown",
            "board_counts",
            "make_board",
            "outcome_line",
            "read_board",
        ),
        "packproof.models.board.tiny": ("architectures",),
    },
)
