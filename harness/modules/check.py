"""The check of a module: per convention, whether documents are isolated and equal to the same documents alone."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import chain, product
from typing import Any

import torch
from torch import nn

from packproof.harness.engine.own_faults import caught, not_reached
from packproof.harness.interpreter.in_use import repair_if_used
from packproof.harness.modules.conventions import CONVENTIONS, Convention, convention_named
from packproof.harness.modules.judges import JUDGES, Judged, Padded, Trial, verdict_of
from packproof.harness.modules.modes import CannotRun, Mode, admitted
from packproof.harness.modules.pack import FIRST, Lengths, layouts_for, many_documents, padded_layouts
from packproof.harness.modules.subject import (
    MakeInput,
    ModuleRefused,
    NoGradient,
    NoOutput,
    PickOutput,
    Subject,
    subject_of,
)
from packproof.harness.modules.target import address
from packproof.harness.results.events import (
    Cell,
    CellFinished,
    CellStarted,
    Event,
    Failure,
    RunFinished,
    RunStarted,
    Status,
    Verdict,
)
from packproof.harness.results.failed import CheckFailed
from packproof.harness.results.module_record import ModuleRecord
from packproof.harness.results.names import ATTENTION, SEED, is_seed, known
from packproof.harness.results.names import dtype as dtype_name
from packproof.harness.results.wording import failure_texts
from packproof.harness.worker.parallel import on_every_core
from packproof.refs.errors import ArgumentError, checked_call

_MOST_TOKENS = {"quick": 64, "standard": 600, "thorough": 4096}
_COMPILED: tuple[Lengths, ...] = (FIRST, (9, 1, 17, 3))  # few: each new shape may compile again
_NOT_ISOLATED = "its documents are not isolated"
MATRIX_DTYPES = ("fp32", "bf16")


@dataclass(frozen=True)
class ModuleRequest:
    """A module and the conventions, modes, dtypes and layouts to check it with."""

    subject: Subject
    conventions: tuple[Convention, ...]
    """The conventions to try."""
    name: str
    """The name of the module in reports."""
    device: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The entries of a replay file from which the module is made again. Empty: no replay files."""
    named: Mapping[str, str] = field(default_factory=dict)
    """The address of each user-defined convention, by its name; a replay imports the convention from there."""
    profile: str = "standard"
    seed: int = 0
    explicit: bool = True
    """Whether the caller named the conventions. A leak or a refusal then fails the check."""
    modes: tuple[Mode, ...] = (Mode(),)
    dtypes: tuple[torch.dtype, ...] = ()
    matrix: bool = False
    """Try every mode and dtype that the module supports. A refused one is reported and not counted."""
    notes: tuple[str, ...] = ()
    """Modes that cannot run here, with the reasons."""
    layouts: tuple[Lengths, ...] = ()
    """Layouts to try. If these and the padded ones are empty, layouts are made for the module: around its chunk sizes,
    windows and convolution widths."""
    padded: tuple[Padded, ...] = ()
    """Layouts with padding to try."""
    laws: tuple[str, ...] = tuple(JUDGES)
    """The properties to judge."""
    timeout: float = 600.0
    """Seconds without an event after which a setting in its own process is ended."""

    def settings(self) -> "list[ModuleSetting]":
        """Every combination of convention, mode and dtype. Each is judged separately."""
        dtypes = self.dtypes or (self.subject.dtype,)
        return [ModuleSetting(*each) for each in product(self.conventions, self.modes, dtypes)]

    def cells(self, setting: "ModuleSetting") -> list[Cell]:
        """The cells of one setting."""
        dtype, device = str(setting.dtype).removeprefix("torch."), self.device.partition(":")[0]
        padded = setting.convention.padding and (self.padded or not self.layouts)
        laws = [law for law in self.laws if law != "padding" or padded]
        return [Cell(str(setting), self.name, law, dtype, device) for law in laws]

    def recorded(self, setting: "ModuleSetting", finding: Judged) -> Judged:
        """Write a replay file of the failure, if there is one, and name the file in the verdict."""
        failure, cell = finding.verdict.failure, finding.verdict.cell
        if failure is None or not self.origin:
            return finding
        record = ModuleRecord(
            **self.origin,
            convention=self.named.get(setting.convention.name, setting.convention.name),
            property=cell.property,
            lengths=failure.lengths,
            gaps=finding.gaps,
            dtype=cell.dtype,
            device=cell.device,
            seed=self.seed,
            mode=asdict(setting.mode),
            message=failure.lines,
        )
        file, trouble = record.write()
        failure = replace(failure, replay=file, lines=(*failure.lines, *filter(None, [trouble])))
        return replace(finding, verdict=replace(finding.verdict, failure=failure))

    def trial(self, setting: "ModuleSetting") -> Trial:
        """The subject and layouts of one setting. Raises CannotRun."""
        most, convention, compiled = _MOST_TOKENS[self.profile], setting.convention, setting.mode.compiled
        subject = self.subject.on(self.device).in_mode(setting.mode)
        subject = subject if setting.dtype == subject.dtype else subject.at(setting.dtype)
        layouts, padded, many = self.layouts, self.padded, tuple[int, ...]()
        if not (layouts or padded):
            layouts = _COMPILED if compiled else tuple(layouts_for(subject.module, most_tokens=most))
            many = () if compiled else many_documents(most)
            padded = tuple(padded_layouts(subject.module, between=convention.padding == "between"))
        return Trial(subject, convention, self.seed, layouts, many, padded[:1] if compiled else padded)


@dataclass(frozen=True)
class ModuleSetting:
    convention: Convention
    mode: Mode
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.convention.name} ({self.mode})" if str(self.mode) else self.convention.name


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
    mode: "eval", "train" (without dropout) or "checkpointing" (training with recomputation), or several of them.
    attention: an implementation of transformers, such as "eager", or several.
    dtypes: "fp32" and so on, one or several. None keeps the module's own.
    compiled: run it through torch.compile.
    matrix: run every mode, attention and dtype that the module and this machine support. A setting that the module
        refuses is skipped.

    Properties of each convention. `isolation`: when one document changes, the others keep their bits, and the gradient
    of each at the tokens of every other is exactly zero; the same call without boundaries must be seen to leak first.
    `packing`: outputs, and the sums of parameters' gradients, are those of the documents alone, in fp64, within
    rounding (measured by running the module at two precisions). `padding`, for a convention with rows outside of every
    document: their contents reach no document, and no NaN comes of them; skipped if the module refuses them.

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
    )
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    if not holds(request, end):
        raise CheckFailed("\n\n".join(_why(request, end)), end.verdicts)
    return end.verdicts


def module_request(
    module: nn.Module | Callable[[], nn.Module],
    *,
    convention: str | Convention | Sequence[str | Convention] | None,
    inputs: int | MakeInput | None = None,
    output: str | PickOutput | None = None,
    redraw: bool = True,
    modes: Sequence[str] = ("eval",),
    attention: Sequence[str] = ("",),
    dtypes: Sequence[str] = (),
    compiled: bool = False,
    matrix: bool = False,
    profile: str = "standard",
    seed: int = 0,
    name: str = "",
    target: str = "",
    device: str | None = None,
    records: bool = True,
    **others: Any,
) -> ModuleRequest:
    """The request for these arguments. Raises ArgumentError and UsageError.

    target: the address from which a replay makes the module again.
    records: whether failures leave replay files.
    request_fields: further fields of ModuleRequest.
    """
    if profile not in _MOST_TOKENS:
        raise ArgumentError(f"profile: {profile!r}, expected one of {', '.join(_MOST_TOKENS)}")
    if not is_seed(seed):
        raise ArgumentError(f"seed: {seed!r}, expected {SEED}")
    given = [convention] if isinstance(convention, str | Convention) else list(convention or CONVENTIONS)
    conventions = tuple(map(convention_named, given))
    own = [(c, g) for c, g in zip(conventions, given, strict=True) if CONVENTIONS.get(c.name) is not c]
    named = {c.name: g if isinstance(g, str) else address(g) or c.name for c, g in own}
    for each in attention:
        known("attention", each, ("", *ATTENTION))
    if matrix and (compiled or [*modes, *attention] != ["eval", ""]):
        raise ArgumentError("matrix: it has every mode and attention, and torch.compile; leave out what chooses them")
    chosen = tuple(Mode.named(mode, each, compiled=compiled) for each in attention for mode in modes)
    origin = {
        "target": target or address(module),
        "inputs": address(inputs) if callable(inputs) else inputs,
        "output": address(output) if callable(output) else output,
        "redraw": redraw,
    }
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        made = module if isinstance(module, nn.Module) else module()
    if not isinstance(made, nn.Module):
        raise ArgumentError(f"module: {type(made).__name__}, expected an nn.Module or a function that returns one")
    subject = subject_of(made, inputs, output, redraw=redraw, seed=seed)
    notes: tuple[str, ...] = ()
    if matrix:
        chosen, notes = admitted(subject.module)
        dtypes = dtypes or MATRIX_DTYPES
    return ModuleRequest(
        subject,
        conventions,
        name or type(made).__name__,
        device or subject.device,
        origin if records else {},
        named,
        profile,
        seed,
        explicit=convention is not None,
        modes=chosen,
        dtypes=tuple(getattr(torch, dtype_name(text)) for text in dtypes),
        matrix=matrix,
        notes=notes,
        **others,
    )


def _texts(name: str, given: str | Sequence[str]) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in texts) or not (texts or name == "dtypes"):
        raise ArgumentError(f"{name}: {given!r}, expected a name, or several in a list")
    return texts


def holds(request: ModuleRequest, end: RunFinished) -> bool:
    """Whether the module passed: by every convention if they were named, else by at least one."""
    if request.explicit:
        statuses = {verdict.status for verdict in end.verdicts}
        return "passed" in statuses and statuses <= {"passed", "skipped"}
    return bool(sorted_out(end)["held by"])


def sorted_out(end: RunFinished) -> dict[str, list[str]]:
    """The names of the conventions, grouped by outcome."""
    found: dict[str, list[str]] = {"held by": [], "broken by": [], "not judged by": []}
    by_convention: dict[str, set[Status]] = {}
    for verdict in end.verdicts:
        by_convention.setdefault(verdict.cell.op, set()).add(verdict.status)
    for name, statuses in by_convention.items():
        held = "passed" in statuses and statuses <= {"passed", "skipped"}
        found["broken by" if "failed" in statuses else "held by" if held else "not judged by"].append(name)
    return found


def _why(request: ModuleRequest, end: RunFinished) -> Iterator[str]:
    if not request.explicit:
        yield f"{request.name}: no convention isolates its documents"
    yield from failure_texts([verdict for verdict in end.verdicts if verdict.failure])
    for verdict in end.verdicts:
        if verdict.status in ("inconclusive", "error") and request.explicit:
            yield f"{verdict.cell.op} · {verdict.cell.target} · {verdict.cell.law} was not judged: {verdict.reason}"


def run_module_check(request: ModuleRequest, *, apart: bool = False) -> Iterator[Event]:
    """Check the module in each setting, event by event.

    in_own_processes: run each setting in its own process, in parallel, and end one that hangs. This process must not
        have run a backward pass yet, since autograd's threads do not survive a fork.
    """
    started = time.monotonic()
    if request.device == "cpu":
        repair_if_used()
    settings, done = request.settings(), {}
    cells = tuple(cell for setting in settings for cell in request.cells(setting))
    yield RunStarted(cells, request.profile, request.seed, request.notes)
    units = [partial(_checked, request, setting) for setting in settings]

    def lost(number: int, text: str) -> Callable[[], Iterator[Event]]:
        left = [cell for cell in request.cells(settings[number]) if cell not in done]
        return partial(not_reached, left, f"the module did not return: {text}")

    side_by_side = partial(on_every_core, units, request.device, of=Event, again=lost, silence=request.timeout)
    events = side_by_side() if apart else chain(*(unit() for unit in units))
    for event in events:
        if isinstance(event, CellFinished):
            done[event.verdict.cell] = event.verdict
        yield event
    yield RunFinished(tuple(done[cell] for cell in cells if cell in done), time.monotonic() - started)


def _checked(request: ModuleRequest, setting: ModuleSetting) -> Iterator[Event]:
    """Judge every property in one setting.

    Once `isolation` has failed, `packing` fails for the same reason, and `padding` is skipped.
    """
    leak: Failure | None = None
    trial = cache(lambda: request.trial(setting))
    for cell in request.cells(setting):
        yield CellStarted(cell)
        began = time.monotonic()
        for event in caught(cell, _judged(request, setting, cell, trial, leak)):
            found = replace(event.verdict, seconds=time.monotonic() - began)
            reason = _NOT_ISOLATED if leak and found.status == "failed" else found.reason
            leak = found.failure if cell.property == "isolation" else leak
            yield CellFinished(replace(found, reason=reason))


def _judged(
    request: ModuleRequest, setting: ModuleSetting, cell: Cell, trial: Callable[[], Trial], leak: Failure | None
) -> Iterator[CellFinished]:
    beside: Status = "skipped" if request.matrix and setting.mode != Mode() else "inconclusive"
    try:
        if leak and cell.property == "padding":
            finding = Judged(verdict_of(cell, "skipped", 0, _NOT_ISOLATED))
        else:
            finding = JUDGES[cell.property](trial().starting_at(leak.lengths if leak else ()), cell)
    except (CannotRun, NoGradient, NoOutput) as error:
        finding = Judged(verdict_of(cell, beside, 0, str(error)))
    except ModuleRefused as refused:
        finding = Judged(verdict_of(cell, beside, 0, f"the module refused: {refused}"))
    yield CellFinished(request.recorded(setting, finding).verdict)
