"""Runs one unit of a plan, in its own process: dtype after dtype, with the cells of a dtype in alternation.

So the most telling cases of every property run before the rest of any.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from packproof.base.errors import OutOfTime, PackproofError
from packproof.base.stopwatch import span
from packproof.harness.check.cell import Evaluator
from packproof.harness.check.failure import KnownFaults, ReplayInfo
from packproof.harness.check.own_faults import error_verdicts, errors_as_verdicts, inconclusive_verdicts
from packproof.harness.check.partition import Unit
from packproof.harness.check.provenance import ProvenanceTrial
from packproof.harness.check.request import PROFILES, Allowance
from packproof.harness.check.rounds import NO_REACH, CaseSelection
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.process import CoreTime, Worker
from packproof.harness.process.naming import Location
from packproof.harness.report import Cell, CellFinished, Event, Progress, Verdict
from packproof.harness.tiers.compile import compile_cells
from packproof.harness.tiers.compute_sanitizer import sanitize_cell
from packproof.properties.declarations import find_question
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import REFERENCE

_LAST_CALL = 20.0  # seconds past the end of the run after which an open call is ended
_SANITIZER_SLOWER = 10  # times the limit of one call, for all golden cases
_QUESTION_ALLOWANCE = Allowance(100, 5)


def run_unit(unit: Unit, core_time: CoreTime) -> Iterator[Event]:
    """The events of one unit, in its own process."""
    if unit.kind == "evaluate":
        yield from _evaluate(unit, core_time)
        return
    events_by_cell: Iterable[tuple[Cell, Iterator[Event]]]
    if unit.kind == "compile":
        kernel_modules = {cell: unit.kernel_modules[cell] for cell in unit.cells}
        events_by_cell = compile_cells(kernel_modules, unit.target.request.compiled)
    else:
        events_by_cell = ((cell, _sanitize(unit.target, cell)) for cell in unit.cells)
    for cell, events in events_by_cell:
        yield from errors_as_verdicts(cell, _in_time(cell, events, core_time))


def _in_time(cell: Cell, events: Iterator[Event], core_time: CoreTime) -> Iterator[Event]:
    """The events of a cell, unless the time is up before it is done."""
    if core_time.is_over:
        yield from inconclusive_verdicts([cell], "out of time before it had a result")
        return
    for event in events:
        yield event
        if isinstance(event, Progress) and not core_time.wait_for_turn():
            yield from inconclusive_verdicts([cell], f"out of time after {event.examples} of its variants")
            return


def _sanitize(target: CheckTarget, cell: Cell) -> Iterator[Event]:
    kernel, space = target.kernel, target.space(cell.dtype)
    location = Location.parse(kernel) if isinstance(kernel, str) else Location.from_function(kernel)
    assert location is not None  # else it could not have been opened on a GPU
    seed, timeout = target.request.seed, _SANITIZER_SLOWER * target.request.time_limit
    yield from sanitize_cell(cell, location, space, gradients=target.gradients, seed=seed, timeout=timeout)


def _evaluate(unit: Unit, core_time: CoreTime) -> Iterator[Event]:
    """The events of cells that judge properties.

    Cells whose process cannot be started are errors. Cells not reached in time are inconclusive.
    """
    remaining = list(unit.cells)
    try:
        for event in _evaluate_dtypes(unit, core_time):
            if isinstance(event, CellFinished) and event.verdict.cell in remaining:  # slack is no cell of the plan
                remaining.remove(event.verdict.cell)
            yield event
    except OutOfTime as error:
        yield from inconclusive_verdicts(remaining, str(error))
    except PackproofError as error:
        yield from error_verdicts(remaining, str(error))


def _evaluate_dtypes(unit: Unit, core_time: CoreTime) -> Iterator[Event]:
    """Dtype after dtype, with one process for the kernel."""
    with unit.target.worker(core_time.deadline + _LAST_CALL) as worker:
        if not core_time.is_over:
            with span("start"):
                worker.open()  # before any autograd here: the process of a closure is a fork of this one
        known_faults = _no_known_faults(unit.target)
        for dtype in dict.fromkeys(cell.dtype for cell in unit.cells):
            cells = [cell for cell in unit.cells if cell.dtype == dtype]
            evaluator = make_evaluator(unit.target, worker, dtype, core_time)
            provenance = _provenance_trial(unit.target, cells)
            evaluator = replace(evaluator, known_faults=known_faults, provenance=provenance)
            yield from evaluate_cells(unit.target, evaluator, cells)


def _provenance_trial(target: CheckTarget, cells: Sequence[Cell]) -> ProvenanceTrial:
    """The trial of who computed. Without the option it is made beside one property, of all units with this dtype."""
    only_own, laws = target.request.only_own_kernels, target.request.laws
    is_made = only_own or REFERENCE.name not in laws or any(cell.property == REFERENCE.name for cell in cells)
    return ProvenanceTrial(only_own, is_settled=not is_made)


def _no_known_faults(target: CheckTarget) -> KnownFaults:
    return KnownFaults(tuple(map(target.space, target.dtypes)))


def make_evaluator(target: CheckTarget, worker: Worker, dtype: str, core_time: CoreTime) -> Evaluator:
    """An evaluator of one kernel and dtype, which knows no fault."""
    request, declared, profile = target.request, target.declared, PROFILES[target.request.profile]
    on_gpu = request.device == "cuda"
    # on a CPU the dtypes share the cases of dtype-independent properties; a GPU is fast enough for all in each dtype
    share = None if on_gpu else (target.dtypes.index(dtype), len(target.dtypes))
    return Evaluator(
        kernel=KernelUnderTest(
            target.op,
            worker,
            declared.promises,
            gradients=target.gradients,
            domain=declared.domain,
            fixed=tuple(declared.fixed),
            conventions=declared.conventions,
            page_sizes=declared.page_sizes,
            takes_cuts=declared.takes_cuts,
            may_refuse=request.contract is None,
        ),
        selection=CaseSelection(
            {tier: max(count, request.least_examples) for tier, count in profile.examples.items()},
            request.seed,
            share,
            target.empty_packs,
            profile.reach if dtype == target.plainest_dtype else NO_REACH,
            declared.constants,
        ),
        allowance=profile.shrink,
        replay=ReplayInfo(
            target.address,
            target.op_name,
            request.chooses_configurations,
            request.replay_dir,
            pasted=None if target.builtin else target.pasted,
            contract=request.contract,
        ),
        known_tier="gpu" if on_gpu else None,
        known_faults=_no_known_faults(target),
        core_time=core_time,
        every_configuration=request.every_configuration,
    )


def evaluate_cells(target: CheckTarget, evaluator: Evaluator, cells: Sequence[Cell]) -> Iterator[Event]:
    """The cells of one dtype: properties of the plan first, memory-filling ones after them, unpromised ones last."""
    laws, space, failed_properties = target.request.laws, target.space(cells[0].dtype), set[str]()
    questions = [cell for cell in cells if cell.unpromised and not target.unpromised]
    start = time.monotonic()
    for fills_memory in (False, True):
        group = [c for c in cells if c not in questions and laws[c.property].fills_memory == fills_memory]
        if fills_memory and len(group) < len(cells):
            evaluator.kernel.slow_calls_until = slow_calls_until(start, time.monotonic())
        for event in alternate((c, evaluator.run_cell(c, laws[c.property], space)) for c in group):
            if isinstance(event, CellFinished) and event.verdict.status == "failed":
                failed_properties.add(event.verdict.cell.property)
            yield event
    for cell in questions:
        if cell.property in failed_properties:
            reason = f"{cell.property} failed"
            yield CellFinished(Verdict(cell, evaluator.tier, "skipped", 0, 0.0, reason=reason))
    open_questions = [cell for cell in questions if cell.property not in failed_properties]
    evaluators = [(cell, _with_question(evaluator, target, cell)) for cell in open_questions]
    yield from alternate((c, with_question.run_cell(c, laws[c.property], space)) for c, with_question in evaluators)


def slow_calls_until(start: float, now: float) -> float:
    """The time until which properties that fill the memory may make slow calls: a third of the check is theirs.

    start, now: when the other cells of the kernel and dtype began, and ended.
    """
    return now + (now - start) / 2


def _with_question(evaluator: Evaluator, target: CheckTarget, cell: Cell) -> Evaluator:
    """The same evaluator for a promise that the kernel does not make: golden cases only, unless the answer counts."""
    declared = find_question(cell.property, cell.unpromised).with_promise(target.declared)
    assert declared is not None
    if not cell.counts:
        selection = replace(evaluator.selection, examples={}, reach=NO_REACH)
        evaluator = replace(evaluator, selection=selection, allowance=_QUESTION_ALLOWANCE)
    kernel = replace(evaluator.kernel, promises=declared.promises)
    return replace(evaluator, kernel=kernel, known_faults=_no_known_faults(target))


def alternate(cells: Iterable[tuple[Cell, Iterator[Event | None]]]) -> Iterator[Event]:
    """The events of the cells, one round of each cell at a time. None ends a round."""
    waiting = deque(errors_as_verdicts(cell, events) for cell, events in cells)
    while waiting:
        cell_events = waiting.popleft()
        for event in cell_events:
            if event is None:
                waiting.append(cell_events)
                break
            yield event
