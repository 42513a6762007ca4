"""The boards: which models each has, how one is judged, and the page of the results."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from packproof.base.errors import UsageError
from packproof.models.board import page
from packproof.models.board.board import CONVENTION_NAMES, SILENCE, Judge, judge_text_model
from packproof.models.board.fla import judge as fla_judge
from packproof.models.board.fla import page as fla_page
from packproof.models.board.fla.tiny import fla_architectures
from packproof.models.board.multimodal import page as multimodal_page
from packproof.models.board.multimodal.judge import CONVENTIONS_ASKED, judge_multimodal_model
from packproof.models.board.multimodal.tiny import multimodal_architectures
from packproof.models.board.results import ModelBoard
from packproof.models.board.tiny import Architecture, architectures

PACKAGES = TRANSFORMERS, FLA = ("transformers", "fla")
_SILENCE_WITH_COMPILER = 580.0  # a first call compiles and tunes many kernels


@dataclass(frozen=True)
class BoardKind:
    """A board of models."""

    architectures: Callable[[], dict[str, Architecture]]
    """Those of the installed package, by name. Raises UsageError without it."""
    judge: Judge
    conventions: Sequence[str]
    """In the order of the results."""
    as_markdown: Callable[[ModelBoard], str]
    package: str = ""
    """The package whose models these are, for its version; "" for transformers itself."""
    device: str = "cpu"
    silence: float = SILENCE
    """Seconds without an outcome, after which the process of an architecture is ended."""

    def require_own(self, board: ModelBoard) -> ModelBoard:
        """The board itself. Raises UsageError if it is one of the other kind."""
        if unknown := {outcome.convention for outcome in board.outcomes} - set(self.conventions):
            raise UsageError(
                f"--from: it has results for {', '.join(sorted(unknown))}, expected those of the board that was named; "
                "models that read images need --multimodal, fla's need --package fla, and others do not have it"
            )
        return board

    def require_device(self) -> None:
        """Raises UsageError if the models run kernels on a CPU and this process does not interpret them."""
        if self.package and self.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError(
                f"--device: cpu, where no kernel of {self.package} runs; give --device cuda, or set TRITON_INTERPRET=1 "
                "to interpret kernels, of which some refuse"
            )


def board_kind(*, multimodal: bool, package: str = TRANSFORMERS, device: str = "cpu") -> BoardKind:
    """The board of causal language models, of models that read images, or of flash-linear-attention's.

    package: one of PACKAGES.
    device: where the models run. Raises UsageError for a board that does not run there.
    """
    if package == FLA:
        if multimodal:
            raise UsageError("--multimodal: no model of flash-linear-attention reads images; leave out --package fla")
        judge = partial(fla_judge.judge_fla_model, device=device)
        return BoardKind(
            fla_architectures,
            judge,
            fla_judge.CONVENTIONS_ASKED,
            fla_page.as_markdown,
            "flash-linear-attention",
            device,
            _SILENCE_WITH_COMPILER,
        )
    if device != "cpu":
        raise UsageError(f"--device: {device}; the models of transformers run on a CPU, those of --package fla on cuda")
    if multimodal:
        return BoardKind(
            multimodal_architectures, judge_multimodal_model, CONVENTIONS_ASKED, multimodal_page.as_markdown
        )
    return BoardKind(architectures, judge_text_model, CONVENTION_NAMES, page.as_markdown)
