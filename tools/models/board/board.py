"""The board of models: how each convention fares in a small random model of each architecture of transformers."""

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from packproof.base.machine import available_cores
from packproof.harness.process import run_side_by_side
from packproof.harness.report import CellFinished, Verdict
from packproof.models.board import flash
from packproof.models.board.exceptions import SIZES
from packproof.models.board.tiny import Architecture, tiny_model
from packproof.models.check import run_module_check
from packproof.models.laws.culprit import module_in
from packproof.models.laws.judges import REFUSED
from packproof.models.laws.loss_judge import CROSSING_LABEL
from packproof.models.laws.losses import EVERY, FIRST_IGNORED
from packproof.models.request import module_request
from packproof.models.subjects.conventions import CONVENTIONS, Convention
from packproof.models.subjects.pack import Lengths
from packproof.models.subjects.subject import MakeInput

Word = Literal["isolates", "leaks", "crashes", "refuses", "differs", "not judged"]
LAYOUTS = ((5, 9, 7), (9, 1, 17, 3))  # across a window or chunk of 8 and a convolution of 4, and not
CONVENTION_NAMES = tuple(n for n in CONVENTIONS if n.startswith(("hf_", "mask4d")))
FLASH = tuple(n for n in CONVENTION_NAMES if n.startswith("hf_") and not n.startswith("hf_mrope"))
LABELS = (EVERY, FIRST_IGNORED)
SILENCE = 180.0  # seconds until an architecture has to give its next outcome


@dataclass(frozen=True)
class Built:
    """An architecture and its small model, or the reason why none was built."""

    name: str
    """The model type."""
    model: str
    """The class of the model."""
    also: tuple[str, ...]
    """Other model types of the same class."""
    layers: str = ""
    """The kinds of layers, as "linear_attention, full_attention"."""
    attention: str = ""
    """The attention implementation chosen by transformers, such as "sdpa"."""
    parameters: int = 0
    """The number of parameters."""
    reason: str = ""
    """The error of the build, "" if it succeeded."""


@dataclass(frozen=True)
class Outcome:
    """The result of one convention in one architecture."""

    name: str
    """The model type."""
    convention: str
    """One of CONVENTION_NAMES."""
    flash: bool
    """Whether attention ran transformers' path of flash attention."""
    word: Word
    """Of the loss, where labels were sent: "isolates" for a reduction of the documents' losses, "leaks" for a label
    that crosses a boundary, "differs" for a loss or a gradient that is no reduction."""
    module: str = ""
    """The first module that leaks, "" if none does or it is unknown."""
    text: str = ""
    """Why the model refuses, differs or was not judged, or another remark."""
    labels: str = ""
    """The labels sent for a loss, one of LABELS, and the criterion, where a model has several; "" if the logits were
    judged."""


BoardEntry = Built | Outcome


Judge = Callable[[Architecture, int], Iterator[BoardEntry]]


def run_board(
    architectures: Sequence[Architecture],
    judge: Judge,
    seed: int = 0,
    silence: float = SILENCE,
    deadline: float = math.inf,
) -> Iterator[BoardEntry]:
    """Judge each architecture in a process of its own.

    judge: judges an architecture with a seed.
    silence: seconds without an outcome, after which a process is ended.
    deadline: when the run ends with the entries it has, by time.monotonic.
    """
    units = [partial(judge, architecture, seed) for architecture in architectures]

    def replacement_of(number: int, text: str) -> Callable[[], Iterator[BoardEntry]]:
        return partial(_entry_of_lost_process, architectures[number], text)

    importlib.import_module("transformers.models.llama.modeling_llama")  # imported once, before the forks
    torch.set_num_threads(1)
    yield from run_side_by_side(
        units,
        available_cores(),
        record_type=BoardEntry,
        retry=replacement_of,
        deadline=deadline,
        max_silence=silence,
    )


def _entry_of_lost_process(architecture: Architecture, text: str) -> Iterator[BoardEntry]:
    yield Built(architecture.name, architecture.model, architecture.also, reason=text)


def judge_text_model(architecture: Architecture, seed: int) -> Iterator[BoardEntry]:
    """The entries of a causal language model."""
    name, names = architecture.name, (architecture.name, architecture.model, architecture.also)
    try:
        model, layers = tiny_model(name)
        parameters = sum(p.numel() for p in model.parameters())
    except Exception as error:
        yield Built(*names, reason=one_line(error))
        return
    attention = str(getattr(model.config, "_attn_implementation", ""))
    yield Built(*names, layers, attention, parameters)
    settings = [(convention, False) for convention in CONVENTION_NAMES]
    if flash.reaches_flash_attention(model):
        settings += [(convention, True) for convention in FLASH]
    isolating = []
    for convention, with_flash in settings:
        outcome = judge_convention(name, model, convention, seed, with_flash=with_flash)
        isolating += [outcome] if outcome.word == "isolates" else []
        yield outcome
    for first in isolating[:1]:  # a loss tells of labels where the logits of documents are their own
        for labels in LABELS:
            yield judge_convention(name, model, first.convention, seed, with_flash=first.flash, labels=labels)


def _random_ids(tokens: int, generator: torch.Generator) -> Tensor:
    """Random ids. None of them is padding, since some models count positions from there."""
    return torch.randint(3, SIZES["pad_token_id"], (1, tokens), generator=generator)


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def judge_convention(
    name: str,
    model: nn.Module,
    convention: str | Convention,
    seed: int,
    *,
    with_flash: bool,
    labels: str = "",
    inputs: int | MakeInput = _random_ids,
    layouts: Sequence[Lengths] = LAYOUTS,
    **request_fields: Any,
) -> Outcome:
    """The outcome of the logits, or of the loss with these labels.

    request_fields: further fields of the request.
    """
    convention_name = convention if isinstance(convention, str) else convention.name
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(flash.replace_flash_attention(model) if with_flash else nullcontext())
            except ValueError as error:  # transformers refuses flash attention with this config
                return Outcome(name, convention_name, with_flash, "refuses", text=one_line(error), labels=labels)
            request = module_request(
                model,
                inputs=inputs,
                convention=convention,
                layouts=layouts,
                laws=("loss",) if labels else ("isolation", "packing"),
                labels=labels or "none",
                seed=seed,
                name=name,
                records=False,
                **request_fields,
            )
            verdicts = []
            for event in run_module_check(request):
                if isinstance(event, CellFinished):
                    verdicts.append(event.verdict)
                    if event.verdict.status != "passed":
                        break
    except Exception as error:
        return Outcome(name, convention_name, with_flash, "not judged", text=one_line(error), labels=labels)
    summary = _summarize_loss(verdicts[0]) if labels else _summarize(verdicts)
    return Outcome(name, convention_name, with_flash, *summary, labels=labels)


def _summarize(verdicts: Sequence[Verdict]) -> tuple[Word, str, str]:
    """The word for the verdicts, the first module that leaks, and the reason."""
    isolation, packing = verdicts[0], verdicts[1] if verdicts[1:] else None
    if fault := _fault(verdicts):
        return fault
    if isolation.failure:
        return "leaks", module_in(isolation.failure.lines), isolation.failure.lines[0]
    if isolation.status == "inconclusive" and isolation.reason.startswith(REFUSED):
        return "refuses", "", isolation.reason.removeprefix(REFUSED)
    if isolation.status != "passed":
        return "not judged", "", isolation.reason
    if packing and packing.failure:
        return "differs", "", packing.failure.lines[0]
    notes = [isolation.reason, packing.reason if packing and packing.status != "passed" else ""]
    return "isolates", "", "; ".join(filter(None, notes))


def _fault(verdicts: Sequence[Verdict]) -> tuple[Word, str, str] | None:
    """The word for a call that ended without a result, no module, and the reason; None if every call had one."""
    failures = (v.failure for v in verdicts if v.failure and v.failure.fault)
    return next((("crashes" if f.fault == "crashed" else "refuses", "", f.lines[0]) for f in failures), None)


def _summarize_loss(verdict: Verdict) -> tuple[Word, str, str]:
    """The word for the verdict on a loss, no module, and the reason."""
    if fault := _fault([verdict]):
        return fault
    if verdict.failure:
        return "leaks" if verdict.failure.tensor == CROSSING_LABEL else "differs", "", verdict.failure.lines[0]
    if verdict.status == "inconclusive" and verdict.reason.startswith(REFUSED):
        return "refuses", "", verdict.reason.removeprefix(REFUSED)
    return "isolates" if verdict.status == "passed" else "not judged", "", verdict.reason
