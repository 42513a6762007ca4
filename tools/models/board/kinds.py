"""The two boards: which models each has, how one is judged, and the page of the results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packproof.base.errors import UsageError
from packproof.models.board import page
from packproof.models.board.board import CONVENTION_NAMES, Judge, judge_text_model
from packproof.models.board.multimodal import page as multimodal_page
from packproof.models.board.multimodal.judge import CONVENTIONS_ASKED, judge_multimodal_model
from packproof.models.board.multimodal.tiny import multimodal_architectures
from packproof.models.board.results import ModelBoard
from packproof.models.board.tiny import Architecture, architectures


@dataclass(frozen=True)
class BoardKind:
    """A board of models."""

    architectures: Callable[[], dict[str, Architecture]]
    """Those of the installed transformers, by name. Raises UsageError without transformers."""
    judge: Judge
    conventions: Sequence[str]
    """In the order of the results."""
    as_markdown: Callable[[ModelBoard], str]

    def require_own(self, board: ModelBoard) -> ModelBoard:
        """The board itself. Raises UsageError if it is one of the other kind."""
        if unknown := {outcome.convention for outcome in board.outcomes} - set(self.conventions):
            raise UsageError(
                f"--from: it has results for {', '.join(sorted(unknown))}, expected those of the board that was named; "
                "models that read images need --multimodal, others do not have it"
            )
        return board


def board_kind(*, multimodal: bool) -> BoardKind:
    """The board of causal language models, or the one of models that read images."""
    if multimodal:
        return BoardKind(
            multimodal_architectures, judge_multimodal_model, CONVENTIONS_ASKED, multimodal_page.as_markdown
        )
    return BoardKind(architectures, judge_text_model, CONVENTION_NAMES, page.as_markdown)
