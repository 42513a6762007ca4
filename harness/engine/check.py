"""The check: from a request to a stream of events, and the same for a caller in Python."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from packproof.harness.compile.cell import compile_cell
from packproof.harness.compute_sanitizer.cell import sanitized_cell
from packproof.harness.engine.evaluate import Evaluator, replay_data
from packproof.harness.engine.plan import COMPILE, PROFILES, CheckRequest, check_names, plan_cells, resolve_op
from packproof.harness.engine.reference_trial import try_reference
from packproof.harness.engine.shrink import Allowance
from packproof.harness.results.events import Cell, CellFinished, Event, RunFinished, RunStarted, Tier, Verdict
from packproof.harness.results.names import dtype as dtype_name
from packproof.harness.results.questions import question_of
from packproof.harness.results.text import printable
from packproof.harness.results.wording import failure_texts, title
from packproof.harness.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel
from packproof.harness.targets.location import Location
from packproof.harness.worker.parallel import on_every_core
from packproof.harness.worker.worker import Worker
from packproof.properties.cases import Space
from packproof.properties.declaration import DEFAULT_DTYPES, Declaration, brought_op, check_signature, declaration
from packproof.properties.domain import Domain
from packproof.properties.fitting import LARGEST
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.op import Op
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.refs.errors import CheckFailed, PackproofError, UsageError

__all__ = ["PROFILES", "TIME_LIMITS", "CheckRequest", "Job", "check", "open_job", "run_check", "worker_for"]

TIME_LIMITS = {"cpu": 30.0, "cuda": 120.0}  # seconds for one call
_FOR_A_QUESTION = Allowance(100, 5)
_SANITIZER_SLOWER = 10  # times the limit of one call, for all golden cases


@dataclass(frozen=True)
class Job:
    """One kernel that is about to be checked. op_name: how a replay file names the op.

    beyond: what it is asked though it does not promise it, in a word. nothing: whether packs of no tokens are drawn for
    every property, or only for `metadata`.
    """

    target: str | Callable[..., Any]
    name: str
    op: Op
    op_name: str
    declared: Declaration
    own: BuiltinKernel | None = None
    beyond: str = ""
    nothing: bool = True

    @property
    def address(self) -> str:
        """What finds it again, which its name need not do."""
        return self.target if isinstance(self.target, str) else self.name


def run_check(request: CheckRequest) -> Iterator[Event]:
    """Check what the request says, event by event; UsageError before the first event if it cannot be run.

    Kernels and dtypes run side by side, each in a process of its own, as many as there are cores. Ctrl-C ends the
    stream with RunFinished(interrupted=True) and all that was found so far.
    """
    check_names(request)
    yield from judged(request, [(request, job) for job in _jobs(request)])


def judged(request: CheckRequest, asked: Sequence[tuple[CheckRequest, Job]], *, apart: bool = False) -> Iterator[Event]:
    """Judge each job as its own request says; the first one says how the run as a whole is called.

    apart: each cell in a process of its own, so that none waits for what another one has to compile.
    """
    started = time.monotonic()
    verdicts: list[Verdict] = []
    interrupted = False
    units = [unit for own, job, compiled in _compiled_once(asked) for unit in _units(own, job, compiled, apart=apart)]
    cells = tuple(c for unit in units for c in unit.cells)
    yield RunStarted(cells, request.profile, request.seed, tuple(n for own, job in asked for n in _notes(own, job)))
    again = _Again(units, verdicts)
    try:
        for event in on_every_core([unit.run for unit in units], request.device, of=Event, again=again):
            if isinstance(event, CellFinished):
                verdicts.append(event.verdict)
            yield event
    except KeyboardInterrupt:
        interrupted = True
    place = {cell: number for number, cell in enumerate(cells)}
    verdicts.sort(key=lambda verdict: place[verdict.cell])
    yield RunFinished(tuple(verdicts), time.monotonic() - started, interrupted)


def _jobs(request: CheckRequest) -> Iterator[Job]:
    if request.target is not None:
        yield open_job(request)
        return
    chosen = [k for k in BUILTIN_KERNELS.values() if request.op in (None, k.op) and k.runs_on(request.device)]
    if not chosen:
        have = ", ".join(dict.fromkeys(k.op for k in BUILTIN_KERNELS.values()))
        raise UsageError(f"op: packproof has no kernel for {request.op!r}, only for {have}; name a target to check")
    for own in chosen:
        yield open_job(request, own)


def open_job(request: CheckRequest, own: BuiltinKernel | None = None) -> Job:
    """Import the kernel in its own process and settle op and promises; UsageError if target or op makes no sense."""
    target = own.target if own else request.target
    assert target is not None
    name = printable(target if isinstance(target, str) else getattr(target, "__qualname__", repr(target)))
    with worker_for(request, target) as worker:
        said = worker.describe()
    declared = own.declaration(request.device) if own else declaration(said, name)
    if request.promises is not None:
        declared = replace(declared, promises=request.promises)
    wanted = own.op if own else request.op
    if wanted is None and declared.op == "":  # it brings its own, which is imported here
        wanted = target if isinstance(target, str) else brought_op(target)
    op = resolve_op(wanted, declared, name)
    if op not in OPS.values():
        try_reference(op)
    check_signature(op, declared, name)
    declared = declared.inside(Domain.of(request.domain))
    _check_domain(op, declared, name)
    op_name = wanted if isinstance(wanted, str) else op.name
    return Job(target, name, op, op_name, declared, own)


def _check_domain(op: Op, declared: Declaration, name: str) -> None:
    """UsageError where no case can be drawn that the kernel supports."""
    declared.domain.check(op, name)
    if not declared.dtypes:
        raise UsageError(f"{name}: domain: none of its dtypes is in it: {'; '.join(declared.domain.texts)}")
    if not any(Space(op, dtype, declared.promises, domain=declared.domain).plain_sizes for dtype in declared.dtypes):
        raise UsageError(
            f"{name}: domain: no sizes of {op.name} up to {LARGEST:,} were found in it: "
            f"{'; '.join(declared.domain.texts)}"
        )


def not_offered(request: CheckRequest, job: Job) -> list[str]:
    """What the op has and this kernel does not take."""
    space = _space(request, job, DEFAULT_DTYPES[0])
    return [*space.missing, *([] if space.domain.allows_slack else ["slack"])]


def _notes(request: CheckRequest, job: Job) -> Iterator[str]:
    """What this kernel does not offer and is therefore not tested for."""
    if job.beyond:
        return
    absent = not_offered(request, job)
    if absent:
        yield f"{job.name} does not take, so it is not tested for: {', '.join(absent)}"
    if request.forward_only or not job.declared.gradients:
        yield f"{job.name}: gradients are not judged"


def _space(request: CheckRequest, job: Job, dtype: str) -> Space:
    said = job.declared
    on_gpu = request.device == "cuda"
    return Space(job.op, dtype, said.promises, said.parameters, domain=said.domain, mixed=said.mixed, on_gpu=on_gpu)


def worker_for(request: CheckRequest, target: str | Callable[..., Any]) -> Worker:
    """A process for the target, with the time that the request gives one call."""
    limit = request.timeout or TIME_LIMITS[request.device]
    return Worker(target, request.device, limit, draw_configs=request.draw_configs)


@dataclass(frozen=True)
class _Unit:
    """Cells that run one after another, such as those of one kernel and dtype, which share runs and references."""

    cells: tuple[Cell, ...]
    make: Callable[[Sequence[Cell]], Iterator[Event]]

    def run(self) -> Iterator[Event]:
        return self.make(self.cells)


class _Again:
    """What runs instead of a unit whose process ended: its other cells once more, then only the news of it."""

    def __init__(self, units: Sequence[_Unit], verdicts: Sequence[Verdict]) -> None:
        self._units, self._verdicts = units, verdicts
        self._met: set[int] = set()

    def __call__(self, number: int, text: str) -> Callable[[], Iterator[Event]]:
        unit, done = self._units[number], {verdict.cell for verdict in self._verdicts}
        left = [cell for cell in unit.cells if cell not in done]
        if number in self._met:
            return partial(_not_judged, left, text)
        self._met.add(number)
        return partial(unit.make, left)


def _not_judged(cells: Sequence[Cell], why: str) -> Iterator[Event]:
    for cell in cells:
        yield CellFinished(Verdict(cell, "eager", "error", 0, 0.0, reason=why))


def _caught(cell: Cell, events: Iterator[Event]) -> Iterator[Event]:
    """The events of a cell; where packproof itself fails in it, that is its verdict, and the others go on."""
    try:
        yield from events
    except Exception as error:
        traceback.print_exc()
        text = str(error) if isinstance(error, PackproofError) else f"{type(error).__name__}: {error}"
        yield from _not_judged([cell], f"packproof itself failed: {text}")


def _compiled_once(asked: Sequence[tuple[CheckRequest, Job]]) -> Iterator[tuple[CheckRequest, Job, bool]]:
    """Each job, and whether the compile tier is its own: the variants of a module go with the first of its kernels."""
    modules: set[str] = set()
    for request, job in asked:
        yield request, job, job.own is not None and job.own.module not in modules
        modules |= {job.own.module} if job.own else set()


def _units(request: CheckRequest, job: Job, compiled: bool, *, apart: bool) -> Iterator[_Unit]:
    cells = plan_cells(request, job.op, job.declared, job.name, compiled=compiled, beyond=job.beyond)
    if request.sanitizer is not None:
        yield from (_Unit((cell,), partial(_each, partial(_sanitized, request, job))) for cell in cells)
        return
    for cell in cells:
        if cell.property == COMPILE:
            assert job.own is not None
            yield _Unit((cell,), partial(_each, partial(compile_cell, own=job.own)))
    for dtype in dict.fromkeys(c.dtype for c in cells if c.property != COMPILE):
        mine = tuple(c for c in cells if c.dtype == dtype)
        for together in [(c,) for c in mine] if apart else [mine]:
            yield _Unit(together, partial(_run_cells, request, job))


def _each(run: Callable[[Cell], Iterator[Event]], cells: Sequence[Cell]) -> Iterator[Event]:
    for cell in cells:
        yield from _caught(cell, run(cell))


def _sanitized(request: CheckRequest, job: Job, cell: Cell) -> Iterator[Event]:
    location = Location.parse(job.target) if isinstance(job.target, str) else Location.of(job.target)
    assert location is not None  # else it could not have been opened on a GPU
    space = _space(request, job, cell.dtype)
    gradients = job.declared.gradients and not request.forward_only
    timeout = _SANITIZER_SLOWER * (request.timeout or TIME_LIMITS[request.device])
    yield from sanitized_cell(cell, location, space, gradients=gradients, seed=request.seed, timeout=timeout)


def _run_cells(request: CheckRequest, job: Job, cells: Sequence[Cell]) -> Iterator[Event]:
    left = list(cells)
    try:
        for event in _judged_together(request, job, cells):
            if isinstance(event, CellFinished):
                left.remove(event.verdict.cell)
            yield event
    except PackproofError as error:  # the kernel's process cannot be started
        yield from _not_judged(left, str(error))


def _judged_together(request: CheckRequest, job: Job, cells: Sequence[Cell]) -> Iterator[Event]:
    profile = PROFILES[request.profile]
    known: Tier | None = "gpu" if request.device == "cuda" else None
    tier: Tier = known or ("interpret" if job.own else "eager")
    gradients = job.declared.gradients and not request.forward_only
    with worker_for(request, job.target) as worker:
        worker.open()  # first: a closure's process is a fork of this one, which has differentiated nothing yet
        said = job.declared
        subject = KernelUnderTest(job.op, worker, said.promises, gradients=gradients, domain=said.domain)
        judge = Evaluator(
            subject=subject,
            examples=profile.examples[tier],
            allowance=profile.shrink,
            seed=request.seed,
            replay=replay_data(job.address, job.op_name, subject, draw_configs=request.draw_configs),
            replay_dir=request.replay_dir,
            known_tier=known,
            nothing=job.nothing,
            deal=_deal(request, job, cells[0].dtype) if tier == "interpret" else None,
        )
        space = _space(request, job, cells[0].dtype)
        failed: set[str] = set()
        for cell in cells:
            asked = cell.beyond and not job.beyond
            if asked and cell.property in failed:
                reason = f"{cell.property} failed"
                yield CellFinished(Verdict(cell, judge.tier, "skipped", 0, 0.0, reason=reason))
                continue
            chosen = _questioner(request, job, judge, cell) if asked else judge
            for event in _caught(cell, chosen.cell(cell, space)):
                if isinstance(event, CellFinished) and event.verdict.status == "failed":
                    failed.add(cell.property)
                yield event


def _questioner(request: CheckRequest, job: Job, judge: Evaluator, cell: Cell) -> Evaluator:
    """Who asks for a promise that the kernel does not make: the golden cases alone, unless the answer counts."""
    raised = question_of(cell.property, cell.beyond).raised(job.declared)
    assert raised is not None
    subject = judge.subject.asked(raised.promises)
    known = replay_data(job.address, job.op_name, subject, draw_configs=request.draw_configs)
    other = replace(judge, subject=subject, replay=known)
    return other if cell.counts else replace(other, examples=0, allowance=_FOR_A_QUESTION)


def _deal(request: CheckRequest, job: Job, dtype: str) -> tuple[int, int]:
    """Interpreted calls are slow: the dtypes judged share the layouts that none of them decides."""
    dtypes = request.dtypes or job.declared.dtypes
    return dtypes.index(dtype), len(dtypes)


def check(
    target: str | Callable[..., Any],
    *,
    op: str | Op | None = None,
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    properties: Sequence[str] | None = None,
    profile: str = "standard",
    seed: int = 0,
    promises: Promises | None = None,
    domain: str | Sequence[str] = (),
    strict: bool = False,
    forward_only: bool = False,
    timeout: float | None = None,
    fail_fast: bool = False,
) -> tuple[Verdict, ...]:
    """Check a kernel; returns the verdicts if every property held.

    target: a function, or its name as "package.module:function" or "path/file.py:function". op: an op of packproof,
    "module:NAME", or an Op. domain: what it supports, as in `packproof.kernel`. fail_fast: stop at the first failure.
    The other arguments as on the command line.

    Raises CheckFailed with the report of every failure, or where not all that was asked could be judged; UsageError if
    the check cannot be run; PackproofError where packproof itself fails.
    """
    request = CheckRequest(
        target=target,
        op=op,
        device=device,
        dtypes=tuple(map(dtype_name, dtypes)) if dtypes else None,
        properties=tuple(properties) if properties else None,
        profile=profile,
        seed=seed,
        promises=promises,
        domain=Domain.of(domain).texts,
        strict=strict,
        forward_only=forward_only,
        timeout=timeout,
    )
    verdicts: list[Verdict] = []
    for event in run_check(request):
        if isinstance(event, CellFinished):
            verdicts.append(event.verdict)
            if fail_fast and event.verdict.failed:
                break
        if isinstance(event, RunFinished) and event.interrupted:
            raise KeyboardInterrupt
    failed = [v for v in verdicts if v.failed]
    if failed:
        raise CheckFailed("\n\n".join(failure_texts(failed)))
    if unjudged := [v for v in verdicts if v.status == "error"]:
        raise PackproofError("\n".join(f"{title(v.cell)}: {v.reason}" for v in unjudged))
    counting = [v for v in verdicts if v.cell.counts]
    open_ = [v for v in counting if v.status == "inconclusive"]
    if open_ or not any(v.status == "passed" for v in counting):
        said = [f"{title(v.cell)}: {v.reason}" for v in open_ or counting]
        raise CheckFailed(
            "inconclusive, not all that was asked could be judged:\n    " + "\n    ".join(dict.fromkeys(said))
        )
    return tuple(verdicts)
