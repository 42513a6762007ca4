"""The check of a module: per convention, whether documents are isolated and equal to the same documents alone."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

from torch import nn

from packproof.base.errors import ArgumentError, checked_call
from packproof.harness.check import errors_as_verdicts, inconclusive_verdicts
from packproof.harness.process import run_on_every_core
from packproof.harness.report import (
    Cell,
    CellFinished,
    CellStarted,
    CheckFailed,
    Event,
    Failure,
    RunFinished,
    RunStarted,
    Status,
    Verdict,
)
from packproof.harness.report.wording import failure_texts
from packproof.interpreter import repair_if_used
from packproof.models.apart.module_process import fault_text, is_interpreted
from packproof.models.laws.catalogue import JUDGES
from packproof.models.laws.judges import CRASHED, REFUSED, Judgement, Trial, verdict_of
from packproof.models.laws.randomness import DRAWS, follows_generator
from packproof.models.outcomes import holding_conventions, outcome_lines, outcomes_of
from packproof.models.request import ModuleRequest, ModuleSetting, module_request
from packproof.models.running.local_module import PickOutput
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.modes import CannotRun, Mode
from packproof.models.subjects.pack import FIRST_LENGTHS, Lengths
from packproof.models.subjects.refusals import ModuleCrashed, ModuleEnded, ModuleRefused, NoGradient, NoOutput
from packproof.models.subjects.subject import MakeInput
from packproof.models.subjects.tested_module import ModuleCall

_NOT_ISOLATED = "its documents are not isolated"
_CRASHED_BEFORE = "the module crashed in the property before"
_OF_EQUAL_DRAWS = ("packing", "padding", "loss")
_SKIPPED_AFTER_LEAK = ("padding", "loss")
_LEAK = "leak"  # the cause of what fails in a setting whose documents are not isolated


@checked_call
def check_module(
    module: nn.Module | Callable[[], nn.Module],
    *,
    convention: str | Convention | Sequence[str | Convention] | None = None,
    inputs: int | MakeInput | None = None,
    output: str | PickOutput | None = None,
    redraw: bool = True,
    mode: str | Sequence[str] = "eval",
    attention: str | Sequence[str] = "",
    dtypes: Sequence[str] | None = None,
    compiled: bool = False,
    matrix: bool = False,
    profile: str = "standard",
    seed: int = 0,
    labels: str = "auto",
) -> tuple[Verdict, ...]:
    """Prove that a module computes each document of a pack as if it were alone, in values and in gradients.

    module: any nn.Module that takes a pack, or a function that makes one. It is copied and put into eval mode.
    convention: how the module learns where documents begin: a name (`packproof model --conventions`), "module:NAME" or
        your own Convention. None tries all of packproof's and reports which of them isolate.
    inputs: the width of a token, or a function (tokens, generator) that returns (1, tokens, ...). None draws token ids
        up to the size of the first nn.Embedding.
    output: the name of the output along tokens, or a function that picks it from what forward returns. None takes
        `logits`, `last_hidden_state` or the first tensor.
    redraw: whether matrices get random values, since freshly initialised ones let little through. False keeps yours.
    mode: "eval", "train" (without dropout), "checkpointing" (training with recomputation), or one of a training step:
        "selective", "reentrant", "accumulation", "autocast", "frozen"; or several of them.
    attention: an implementation of transformers, such as "eager", or several.
    dtypes: "fp32" and so on, one or several. None keeps the module's own.
    compiled: run it through torch.compile.
    matrix: run every mode, attention and dtype that the module and this machine support. A setting that the module
        refuses is skipped.
    labels: the labels for the loss: "every" token's, "first_ignored" (-100 at the first token of each document),
        "shifted" (as `shift_labels`), or "none" to ask for no loss. "auto" takes the form of the convention if forward
        takes labels.

    Properties of each convention. `isolation`: when one document changes, the others keep their bits, and the gradient
    of each at the tokens of every other is exactly zero; the same call without boundaries must be seen to leak first.
    `packing`: outputs, and the sums of parameters' gradients, are those of the documents alone, in fp64, within
    rounding (measured by running the module at two precisions). `padding`, for a convention with rows outside of every
    document: their contents reach no document, and no NaN comes of them; skipped if the module refuses them. `loss`, if
    forward takes labels: no label crosses a boundary, the loss is a reduction of the documents' losses, and its
    gradients are theirs, each times its share. `modes`: a training step in a mode has the losses, gradients and buffers
    of one in plain train mode.

    Returns the verdicts. A failure leaves a replay file in .packproof. Raises CheckFailed, with the smallest layout and
    the first module that leaks, if a named convention does not hold, or if none was named and none holds; ArgumentError
    for a wrong argument.

    >>> import torch, packproof
    >>> class Mean(torch.nn.Module):
    ...     def forward(self, x, cu_seqlens):
    ...         return torch.cat([d.cumsum(0) for d in x[0].split(cu_seqlens.diff().tolist())])
    >>> [v.status for v in packproof.check_module(Mean(), convention="cu_seqlens", inputs=8)]
    ['passed', 'passed', 'skipped']
    """
    request = module_request(
        module,
        convention=convention,
        inputs=inputs,
        output=output,
        redraw=redraw,
        modes=_texts("mode", mode),
        attention=_texts("attention", attention),
        dtypes=_texts("dtypes", dtypes or ()),
        compiled=compiled,
        matrix=matrix,
        profile=profile,
        seed=seed,
        labels=labels,
    )
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    if not module_passed(request, end):
        raise CheckFailed("\n\n".join(_failure_reasons(request, end)), end.verdicts)
    return end.verdicts


def _texts(name: str, value: str | Sequence[str]) -> list[str]:
    texts = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(text, str) for text in texts) or not (texts or name == "dtypes"):
        raise ArgumentError(f"{name}: {value!r}, expected a name, or several in a list")
    return texts


def module_passed(request: ModuleRequest, end: RunFinished) -> bool:
    """Whether the module passed: by every convention if they were named, else by at least one."""
    if request.explicit:
        statuses = {verdict.status for verdict in end.verdicts}
        return "passed" in statuses and statuses <= {"passed", "skipped"}
    return bool(holding_conventions(outcomes_of(end.verdicts)))


def _failure_reasons(request: ModuleRequest, end: RunFinished) -> Iterator[str]:
    if not request.explicit:
        yield "\n".join((f"{request.name}: no convention holds; name one to see why", *outcome_lines(end.verdicts)))
        return
    yield from failure_texts([verdict for verdict in end.verdicts if verdict.failure])
    for verdict in end.verdicts:
        if verdict.status in ("inconclusive", "error"):
            yield f"{verdict.cell.op} · {verdict.cell.target} · {verdict.cell.law} was not judged: {verdict.reason}"


def run_module_check(request: ModuleRequest, *, in_own_processes: bool = False) -> Iterator[Event]:
    """Check the module in each setting, event by event.

    in_own_processes: judge each setting in its own process, in parallel. Without a process of the module, the module
        runs there too, and one that hangs is ended; this process must then not have run a backward pass yet, since
        autograd's threads do not survive a fork.
    """
    start = time.monotonic()
    if request.device == "cpu" and not request.is_apart:
        repair_if_used()
    settings, verdicts = request.settings(), {}
    cells = tuple(cell for setting in settings for cell in request.cells(setting))
    yield RunStarted(cells, request.profile, request.seed, request.notes)
    units = [partial(_check_setting, request, setting) for setting in settings]

    def report_lost_setting(number: int, text: str) -> Callable[[], Iterator[Event]]:
        remaining_cells = [cell for cell in request.cells(settings[number]) if cell not in verdicts]
        return partial(inconclusive_verdicts, remaining_cells, f"the module did not return: {text}")

    run_in_parallel = partial(
        run_on_every_core,
        units,
        request.device,
        record_type=Event,
        retry=report_lost_setting,
        max_silence=math.inf if request.is_apart else request.timeout,
        interpreted=is_interpreted(request.device) if request.is_apart else None,
    )
    events = run_in_parallel() if in_own_processes else chain(*(unit() for unit in units))
    for event in events:
        if isinstance(event, CellFinished):
            verdicts[event.verdict.cell] = event.verdict
        yield event
    yield RunFinished(tuple(verdicts[cell] for cell in cells if cell in verdicts), time.monotonic() - start)


def _check_setting(request: ModuleRequest, setting: ModuleSetting) -> Iterator[Event]:
    """Judge every property in one setting.

    Once `isolation` has failed, `packing` fails for the same reason, and `padding` and `loss` are skipped. Once the
    module has crashed, nothing more can be asked.
    """
    leak: Failure | None = None
    trial, cells = cache(lambda: request.trial(setting)), request.cells(setting)
    for number, cell in enumerate(cells, start=1):
        yield CellStarted(cell)
        start = time.monotonic()
        request.subject.module.start_clock(request.timeout)
        for event in errors_as_verdicts(cell, _judge_cell(request, setting, cell, trial, leak)):
            verdict = replace(event.verdict, seconds=time.monotonic() - start)
            if verdict.failure and verdict.failure.fault == "crashed":
                yield CellFinished(verdict)
                yield from inconclusive_verdicts(cells[number:], _CRASHED_BEFORE)
                return
            if leak and verdict.failure and cell.property != "modes":
                verdict = replace(verdict, reason=_NOT_ISOLATED, failure=replace(verdict.failure, cause=_LEAK))
            if cell.property == "isolation" and verdict.failure and not verdict.failure.fault:
                leak = replace(verdict.failure, cause=_LEAK)
                verdict = replace(verdict, failure=leak)
            yield CellFinished(verdict)


def _fault_of(refusal: ModuleRefused, lengths: Lengths) -> Failure:
    """The failure of a module that has raised by a mistake in its code: no call is refused in this way."""
    lines = (f"the module raised {refusal}", refusal.mistake)
    return Failure(lengths, "", lines, 1, 0, fault="raised", cause=str(refusal))


def _draws_numbers(trial: Trial) -> bool:
    """Whether random numbers are left in train mode. Raises ModuleRefused."""
    subject = trial.subject
    pack = subject.pack(FIRST_LENGTHS)
    call = ModuleCall(subject.input(pack.tokens, trial.seed), trial.convention, pack)
    return subject.mode.train and follows_generator(lambda seed: subject.call(replace(call, seed=seed)))


def _judge_cell(
    request: ModuleRequest, setting: ModuleSetting, cell: Cell, trial: Callable[[], Trial], leak: Failure | None
) -> Iterator[CellFinished]:
    refused_status: Status = "skipped" if request.matrix and setting.mode != Mode() else "inconclusive"
    try:
        if leak and cell.property in _SKIPPED_AFTER_LEAK:
            judgement = Judgement(verdict_of(cell, "skipped", 0, _NOT_ISOLATED))
        else:
            judgement = JUDGES[cell.property](trial().with_first_layout(leak.lengths if leak else ()), cell)
            if judgement.verdict.failure and cell.property in _OF_EQUAL_DRAWS and _draws_numbers(trial()):
                judgement = Judgement(verdict_of(cell, refused_status, judgement.verdict.examples, DRAWS))
    except (CannotRun, NoGradient, NoOutput) as error:
        judgement = Judgement(verdict_of(cell, refused_status, 0, str(error)))
    except ModuleRefused as refusal:
        if request.explicit and refusal.mistake:
            judgement = Judgement(verdict_of(cell, "failed", 1, failure=_fault_of(refusal, trial().layouts[0])))
        else:
            judgement = Judgement(verdict_of(cell, refused_status, 0, f"{REFUSED}{refusal}"))
    except ModuleEnded as end:
        lines = tuple(f"the module did not return: its process {fault_text(end)}".splitlines())
        failure = Failure(end.lengths or FIRST_LENGTHS, "", lines, 1, 1, fault="crashed")
        judgement = Judgement(verdict_of(cell, "failed", 1, failure=failure))
    except ModuleCrashed as crash:
        failure = Failure(crash.lengths, "", (f"{CRASHED}{crash}",), 1, 1, fault="crashed")
        judgement = Judgement(verdict_of(cell, "failed", 1, failure=failure))
    yield CellFinished(request.with_replay_file(setting, judgement).verdict)
