"""The check: from a request to a stream of events, and the same for a caller in Python."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from packproof.harness.compiling import compile_cell
from packproof.harness.events import Cell, CellFinished, Event, RunFinished, RunStarted, Tier, Verdict
from packproof.harness.judge import Judge, replay_data
from packproof.harness.names import dtype as dtype_name
from packproof.harness.own import OWN, OwnKernel
from packproof.harness.plan import COMPILE, PROFILES, CheckRequest, check_names, plan_cells, resolve_op
from packproof.harness.target import Declaration, check_signature, declaration
from packproof.harness.wording import failure_text
from packproof.harness.worker import Worker
from packproof.properties.cases import Space
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.properties.subject import Subject
from packproof.refs.errors import CheckFailed, UsageError

__all__ = ["PROFILES", "CheckRequest", "Job", "check", "open_job", "run_check"]

_TIME_LIMITS = {"cpu": 30.0, "cuda": 120.0}


@dataclass(frozen=True)
class Job:
    """One kernel that is about to be checked. op_name: how a replay file names the op."""

    target: str
    op: Op
    op_name: str
    declared: Declaration
    worker: Worker
    own: OwnKernel | None = None


def run_check(request: CheckRequest) -> Iterator[Event]:
    """Check what the request says, event by event; UsageError before the first event if it cannot be run.

    Ctrl-C ends the stream with RunFinished(interrupted=True) and all that was found so far.
    """
    check_names(request)
    started = time.monotonic()
    verdicts: list[Verdict] = []
    interrupted = False
    with ExitStack() as stack:
        jobs = [stack.enter_context(_closing(job)) for job in _jobs(request)]
        plans = [plan_cells(request, j.op, j.declared, j.target, compiled=j.own is not None) for j in jobs]
        yield RunStarted(tuple(c for cells in plans for c in cells), request.profile, request.seed)
        try:
            for job, cells in zip(jobs, plans, strict=True):
                for event in _run_job(request, job, cells):
                    if isinstance(event, CellFinished):
                        verdicts.append(event.verdict)
                    yield event
        except KeyboardInterrupt:
            interrupted = True
    yield RunFinished(tuple(verdicts), time.monotonic() - started, interrupted)


class _closing:  # noqa: N801
    """Closes a job's worker at the end."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> Job:
        return self._job

    def __exit__(self, *_: object) -> None:
        self._job.worker.close()


def _jobs(request: CheckRequest) -> Iterator[Job]:
    if request.target is not None:
        yield open_job(request)
        return
    chosen = [k for k in OWN.values() if request.op in (None, k.op)]
    if not chosen:
        have = ", ".join(OWN)
        raise UsageError(f"op: packproof has no kernel for {request.op!r}, only for {have}; name a target to check")
    for own in chosen:
        yield open_job(request, own)


def open_job(request: CheckRequest, own: OwnKernel | None = None) -> Job:
    """Start the kernel's process and settle op and promises. Raises UsageError if the target or op makes no sense."""
    target = own.target if own else request.target
    assert target is not None
    worker = Worker(target, request.device, request.timeout or _TIME_LIMITS[request.device])
    name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
    try:
        said = worker.describe()
        declared = own.declaration() if own else declaration(said, name)
        if request.promises is not None:
            declared = _with_promises(declared, request.promises)
        op = resolve_op(own.op if own else request.op, declared, name)
        check_signature(op, declared, name)
    except BaseException:
        worker.close()
        raise
    op_name = request.op if isinstance(request.op, str) else op.name
    return Job(name, op, op_name, declared, worker, own)


def _with_promises(declared: Declaration, promises: Promises) -> Declaration:
    return Declaration(declared.op, promises, declared.gradients, declared.dtypes, declared.parameters)


def _run_job(request: CheckRequest, job: Job, cells: Sequence[Cell]) -> Iterator[Event]:
    profile = PROFILES[request.profile]
    known: Tier | None = "gpu" if request.device == "cuda" else None
    tier: Tier = known or ("interpret" if job.own else "eager")
    gradients = job.declared.gradients and not request.forward_only
    subject = Subject(job.op, job.worker, job.declared.promises, gradients=gradients)
    judge = Judge(
        subject=subject,
        examples=profile.examples[tier],
        allowance=profile.shrink,
        seed=request.seed,
        replay=replay_data(job.target, job.op_name, subject),
        replay_dir=request.replay_dir,
        known_tier=known,
    )
    dtype = ""
    for cell in sorted(cells, key=lambda c: _order(cells, c)):
        if cell.property == COMPILE:
            assert job.own is not None
            yield from compile_cell(cell, job.own)
            continue
        if cell.dtype != dtype:
            subject.forget()
            dtype = cell.dtype
        space = Space(job.op, cell.dtype, job.declared.promises, job.declared.parameters)
        yield from judge.cell(cell, space)


def _order(cells: Sequence[Cell], cell: Cell) -> tuple[bool, int, int]:
    """Compile first, then dtype by dtype, so that properties share runs and reference values."""
    dtypes = list(dict.fromkeys(c.dtype for c in cells))
    return cell.property != COMPILE, dtypes.index(cell.dtype), cells.index(cell)


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
    forward_only: bool = False,
    timeout: float | None = None,
    fail_fast: bool = False,
) -> tuple[Verdict, ...]:
    """Check a kernel; returns the verdicts if every property held.

    target: a function, or its name as "package.module:function" or "path/file.py:function". op: an op of packproof, "module:NAME",
    or an Op. fail_fast: stop at the first failure. The other arguments as on the command line.

    Raises CheckFailed with the report of every failure, UsageError if the check cannot be run.
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
        forward_only=forward_only,
        timeout=timeout,
    )
    verdicts: list[Verdict] = []
    for event in run_check(request):
        if isinstance(event, CellFinished):
            verdicts.append(event.verdict)
            if fail_fast and event.verdict.status == "failed":
                break
        if isinstance(event, RunFinished) and event.interrupted:
            raise KeyboardInterrupt
    failed = [v for v in verdicts if v.status == "failed"]
    if failed:
        raise CheckFailed("\n\n".join(failure_text(v) for v in failed))
    if not any(v.status == "passed" for v in verdicts):
        raise CheckFailed("nothing was checked: " + "; ".join(f"{v.cell.property}: {v.reason}" for v in verdicts))
    return tuple(verdicts)
