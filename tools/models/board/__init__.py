"""Small versions of the models of transformers, and whether they isolate packed documents."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.models.board.board import Built, run_board
    from packproof.models.board.kinds import PACKAGES, board_kind
    from packproof.models.board.results import as_json, board_counts, make_board, outcome_line, read_boards

__all__ = [
    "PACKAGES",
    "Built",
    "as_json",
    "board_counts",
    "board_kind",
    "make_board",
    "outcome_line",
    "read_boards",
    "run_board",
]

export(
    sys.modules[__name__],
    {
        "packproof.models.board.board": ("Built", "run_board"),
        "packproof.models.board.kinds": ("PACKAGES", "board_kind"),
        "packproof.models.board.results": ("as_json", "board_counts", "make_board", "outcome_line", "read_boards"),
    },
)
