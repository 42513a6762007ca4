"""The check of a module: for each convention, whether documents are isolated and equal to themselves alone."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import nn

from packproof.harness.engine.own_faults import caught, not_judged
from packproof.harness.modules.conventions import CONVENTIONS, Convention, convention_named
from packproof.harness.modules.culprit import first_leaking_module
from packproof.harness.modules.equality import differences
from packproof.harness.modules.isolation import Reach, reach
from packproof.harness.modules.layouts import Lengths, layouts_for, smaller
from packproof.harness.modules.pack import Pack
from packproof.harness.modules.subject import MakeInput, ModuleRefused, NoGradient, PickOutput, Subject, subject_of
from packproof.harness.results.events import (
    Cell,
    CellFinished,
    CellStarted,
    Event,
    Failure,
    RunFinished,
    RunStarted,
    Status,
    Tier,
    Verdict,
)
from packproof.harness.results.failed import CheckFailed
from packproof.harness.results.wording import failure_texts
from packproof.harness.worker.parallel import on_every_core
from packproof.refs.errors import ArgumentError, checked_call

LAWS = ("isolation", "packing")
_MOST_TOKENS = {"quick": 64, "standard": 600, "thorough": 4096}
_SHRINK_SECONDS = 10.0


@dataclass(frozen=True)
class ModuleRequest:
    """What to check. conventions: to be tried; explicit: named by the caller, so that a leak or a refusal counts.
    name: of the module in reports. layouts: to be tried, instead of those drawn around the sizes that the module has.
    The others as in `check_module`."""

    subject: Subject
    conventions: tuple[Convention, ...]
    name: str
    device: str
    profile: str = "standard"
    seed: int = 0
    explicit: bool = True
    layouts: tuple[Lengths, ...] = ()

    def tried(self) -> Sequence[Lengths]:
        """The layouts to be tried."""
        return self.layouts or layouts_for(self.subject.module, most_tokens=_MOST_TOKENS[self.profile])

    def cells(self, convention: Convention) -> list[Cell]:
        """Those of one convention."""
        dtype, device = str(self.subject.dtype).removeprefix("torch."), self.device.partition(":")[0]
        return [Cell(convention.name, self.name, law, dtype, device) for law in LAWS]


@checked_call
def check_module(
    module: nn.Module | Callable[[], nn.Module],
    *,
    convention: str | Convention | Sequence[str | Convention] | None = None,
    inputs: int | MakeInput | None = None,
    output: str | PickOutput | None = None,
    redraw: bool = True,
    profile: str = "standard",
    seed: int = 0,
) -> tuple[Verdict, ...]:
    """Prove that a module computes each document of a pack as if it were alone, in values and in gradients.

    module: any nn.Module that takes a pack, or a function that makes one; it is copied, and put into eval mode.
    convention: how it learns where documents begin, by name (`packproof model --conventions`) or your own; None tries
    all of packproof's and reports which of them isolate.
    inputs: None for token ids up to the size of its first nn.Embedding, the width of a token, or a function
    (tokens, generator) that returns (1, tokens, ...). output: the name of the output along tokens in what forward
    returns, or a function that picks it; None takes `logits`, `last_hidden_state` or the first tensor.
    redraw: whether matrices get random values, since freshly initialised ones let little through; False keeps yours.

    Two properties for each convention. `isolation`: when one document changes, the others keep their bits, and the
    gradient of each at the tokens of every other is exactly zero; the same call without boundaries must be seen to leak
    first. `packing`: outputs, and the sums of parameters' gradients, are those of the documents alone, in fp64, within
    what rounding explains (measured by running the module at two precisions).

    Returns the verdicts. Raises CheckFailed, which names the smallest layout and the first module that leaks, if a
    convention that was named does not hold, or, where none was, if none does; ArgumentError for a wrong argument.

    >>> import torch, packproof
    >>> class Mean(torch.nn.Module):
    ...     def forward(self, x, cu_seqlens):
    ...         return torch.cat([d.cumsum(0) for d in x[0].split(cu_seqlens.diff().tolist())])
    >>> [v.status for v in packproof.check_module(Mean(), convention="cu_seqlens", inputs=8)]
    ['passed', 'passed']
    """
    request = module_request(
        module, convention=convention, inputs=inputs, output=output, redraw=redraw, profile=profile, seed=seed
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
    profile: str = "standard",
    seed: int = 0,
    name: str = "",
    device: str | None = None,
    dtype: torch.dtype | None = None,
    layouts: tuple[Lengths, ...] = (),
) -> ModuleRequest:
    """The request of these arguments. Raises ArgumentError and UsageError."""
    if profile not in _MOST_TOKENS:
        raise ArgumentError(f"profile: {profile!r}, expected one of {', '.join(_MOST_TOKENS)}")
    given = [convention] if isinstance(convention, str | Convention) else list(convention or CONVENTIONS)
    conventions = tuple(map(convention_named, given))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        made = module if isinstance(module, nn.Module) else module()
    if not isinstance(made, nn.Module):
        raise ArgumentError(f"module: {type(made).__name__}, expected an nn.Module or a function that returns one")
    subject = subject_of(made, inputs, output, redraw=redraw, seed=seed)
    subject = subject.at(dtype) if dtype else subject
    return ModuleRequest(
        subject,
        conventions,
        name or type(made).__name__,
        device or subject.device,
        profile,
        seed,
        explicit=convention is not None,
        layouts=layouts,
    )


def holds(request: ModuleRequest, end: RunFinished) -> bool:
    """Whether the module passed: by every convention that was named, or by one of those that were tried."""
    if request.explicit:
        return all(verdict.status == "passed" for verdict in end.verdicts)
    return bool(sorted_out(end)["held by"])


def sorted_out(end: RunFinished) -> dict[str, list[str]]:
    """The conventions by what came of them."""
    found: dict[str, list[str]] = {"held by": [], "broken by": [], "not judged by": []}
    by_convention: dict[str, set[Status]] = {}
    for verdict in end.verdicts:
        by_convention.setdefault(verdict.cell.op, set()).add(verdict.status)
    for name, statuses in by_convention.items():
        kind = "broken by" if "failed" in statuses else "held by" if statuses == {"passed"} else "not judged by"
        found[kind].append(name)
    return found


def _why(request: ModuleRequest, end: RunFinished) -> Iterator[str]:
    if not request.explicit:
        yield f"{request.name}: no convention isolates its documents"
    yield from failure_texts(end.verdicts)
    for verdict in end.verdicts:
        if verdict.status in ("inconclusive", "error") and request.explicit:
            yield f"{verdict.cell.op} · {verdict.cell.target} · {verdict.cell.law} was not judged: {verdict.reason}"


def run_module_check(request: ModuleRequest, *, apart: bool = False) -> Iterator[Event]:
    """Check the module by each convention, event by event.

    apart: each convention in a process of its own, side by side. This process must not have differentiated yet.
    """
    started = time.monotonic()
    conventions, done = request.conventions, {}
    yield RunStarted(tuple(cell for c in conventions for cell in request.cells(c)), request.profile, request.seed)
    units = [partial(_checked, request, convention) for convention in conventions]

    def lost(number: int, text: str) -> Callable[[], Iterator[Event]]:
        return partial(not_judged, request.cells(conventions[number]), text)

    events = on_every_core(units, request.device, of=Event, again=lost) if apart else chain(*(u() for u in units))
    for event in events:
        if isinstance(event, CellFinished):
            done[event.verdict.cell] = event.verdict
        yield event
    verdicts = [done[cell] for c in conventions for cell in request.cells(c) if cell in done]
    yield RunFinished(tuple(verdicts), time.monotonic() - started)


def _checked(request: ModuleRequest, convention: Convention) -> Iterator[Event]:
    """Both properties by one convention."""
    request, leaks = replace(request, subject=request.subject.on(request.device)), False
    for cell, judge in zip(request.cells(convention), (_isolation, _equality), strict=True):
        yield CellStarted(cell)
        began = time.monotonic()
        for event in caught(cell, _judged(judge, request, convention, cell)):
            verdict = replace(event.verdict, seconds=time.monotonic() - began)
            reason = "its documents are not isolated" if leaks and verdict.status == "failed" else verdict.reason
            leaks |= verdict.status == "failed"
            yield CellFinished(replace(verdict, reason=reason))


def _judged(judge: "Judge", request: ModuleRequest, convention: Convention, cell: Cell) -> Iterator[CellFinished]:
    try:
        yield CellFinished(judge(request, convention, cell))
    except NoGradient as error:
        yield CellFinished(_verdict(cell, "inconclusive", 0, str(error)))
    except ModuleRefused as refused:
        yield CellFinished(_verdict(cell, "inconclusive", 0, f"the module refused: {refused}"))


Judge = Callable[[ModuleRequest, Convention, Cell], Verdict]


def _verdict(cell: Cell, status: Status, examples: int, reason: str = "", failure: Failure | None = None) -> Verdict:
    tier: Tier = "gpu" if cell.device == "cuda" else "eager"
    refused = 1 if status == "inconclusive" and not examples else 0
    return Verdict(cell, tier, status, examples + refused, 0.0, examples, refused, reason=reason, failure=failure)


def _isolation(request: ModuleRequest, convention: Convention, cell: Cell) -> Verdict:
    subject, notes, judged = request.subject, [], 0
    for lengths in request.tried():
        pack = subject.pack(lengths)
        if not judged and (why := _void(subject, convention, pack, request.seed)):
            return _verdict(cell, "inconclusive", 0, why)
        found = reach(subject, convention, pack, request.seed)
        judged += 1
        if found.leaks:
            failure = _leak(request, convention, lengths, found, judged)
            return _verdict(cell, "failed", judged, failure=failure)
        if found.rounded:
            notes.append(f"others move by rounding, with a gradient of zero, at lengths {list(lengths)}")
    return _verdict(cell, "passed", judged, "; ".join(notes[:1]))


def _void(subject: Subject, convention: Convention, pack: Pack, seed: int) -> str:
    """Why nothing can be concluded from what this module does: it is random, or leaks nothing without boundaries."""
    x, arguments = subject.input(pack.tokens, seed), subject.arguments(convention, pack)
    with torch.no_grad():
        once, twice = (subject.call_with(x, arguments, convention) for _ in range(2))
    if not torch.equal(once.nan_to_num(), twice.nan_to_num()):
        return "two equal calls differ: no document can be shown to be isolated from chance"
    if not once.isfinite().all():
        return "its outputs are not finite"
    told_nothing = subject.arguments(convention, pack.without_boundaries())
    if not reach(subject, convention, pack, seed, told_nothing).leaks:
        return "the same call without boundaries leaks nothing either, so that this check could not see a leak"
    return ""


def _leak(request: ModuleRequest, convention: Convention, lengths: Lengths, found: Reach, example: int) -> Failure:
    """The leak at the smallest layout that has one, with the first module that leaks."""
    subject, seed = request.subject, request.seed
    first = found.leaks[0]
    culprit = (
        first_leaking_module(subject, convention, subject.pack(lengths), first[0], seed) if found.moves(first) else None
    )
    small, at, tried = lengths, found, 0
    until = time.monotonic() + _SHRINK_SECONDS
    for candidate in smaller(lengths):
        if time.monotonic() > until:
            break
        tried += 1
        try:
            there = reach(subject, convention, subject.pack(candidate), seed)
        except ModuleRefused:
            continue
        if there.leaks:
            small, at = candidate, there
            break
    i, j = at.leaks[0]
    lines = [
        f"document {i} reaches document {j}: outputs of up to {at.scale:.3g} move by {at.moved[i, j]:.3g} when it "
        f"changes, and their gradient at its tokens is up to {at.gradient[i, j]:.3g}, not 0",
        *(culprit.lines() if culprit else ()),
        *(() if at.moves((i, j)) else ("it leaks in the backward pass alone: outputs move by no more than rounding",)),
        *_without_effect(subject, convention, subject.pack(lengths), found, seed),
    ]
    return Failure(small, "output", tuple(lines), example, tried)


def _without_effect(subject: Subject, convention: Convention, pack: Pack, found: Reach, seed: int) -> Iterator[str]:
    """The arguments with which the module gives the same bits whether they tell of many documents or of one."""
    x, arguments = subject.input(pack.tokens, seed), subject.arguments(convention, pack)
    of_one = subject.arguments(convention, pack.without_boundaries())
    idle = []
    for name in [n for n, value in arguments.items() if not isinstance(value, bool)]:
        try:
            with torch.no_grad():
                out = subject.call_with(x, arguments | {name: of_one[name]}, convention)
        except ModuleRefused:
            continue
        if torch.equal(out, found.output):
            idle.append(name)
    if idle:
        yield f"accepted without effect: {', '.join(idle)}: for one document the output has the same bits"


def _equality(request: ModuleRequest, convention: Convention, cell: Cell) -> Verdict:
    subject, judged, vacuous = request.subject, 0, []
    for lengths in request.tried():
        judged += 1
        for difference in differences(subject, convention, subject.pack(lengths), request.seed):
            if difference.vacuous:
                vacuous.append(difference.what)
            if difference.fails:
                line = (
                    f"{difference.what}: off by {difference.found:.3g} from the document alone, in values of up to "
                    f"{difference.scale:.3g}; rounding explains {difference.allowed:.3g}"
                )
                return _verdict(cell, "failed", judged, failure=Failure(lengths, difference.what, (line,), judged, 0))
    if vacuous:
        what = f"{vacuous[0]} and {len(vacuous) - 1} more" if vacuous[1:] else vacuous[0]
        return _verdict(cell, "inconclusive", judged, f"{what}: rounding changes it as much as a wrong choice: a tie")
    return _verdict(cell, "passed", judged)
