"""Runs the units of a plan side by side and merges their events. A lost unit runs once more."""

import math
import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from packproof.harness.compile.cell import compile_cells
from packproof.harness.compute_sanitizer.cell import sanitize_cell
from packproof.harness.engine.evaluate import evaluate_unit
from packproof.harness.engine.own_faults import error_verdicts, errors_as_verdicts, inconclusive_verdicts
from packproof.harness.engine.plan import Plan, Unit
from packproof.harness.engine.target import CheckTarget
from packproof.harness.results.events import (
    Cell,
    CellFinished,
    Event,
    FailureFound,
    Progress,
    RunFinished,
    RunStarted,
    Timings,
    Verdict,
)
from packproof.harness.targets.location import Location
from packproof.harness.worker.parallel import run_on_every_core
from packproof.harness.worker.sharing import CoreTime
from packproof.properties.stopwatch import pop_seconds

_GRACE = 30.0  # seconds past the end of a run, for an open call to return and a failure to be shrunk
_SANITIZER_SLOWER = 10  # times the limit of one call, for all golden cases


def run_plan(plan: Plan) -> Iterator[Event]:
    """Every event of the run, from RunStarted to RunFinished, with verdicts in the order of the plan.

    Units run side by side, each in a process of its own, one for each core. Ctrl-C ends the stream with
    RunFinished(interrupted=True) and all results so far.
    """
    started, interrupted = time.monotonic(), False
    limit = math.inf if plan.request.max_time is None else plan.request.max_time
    run, why = _PlanRun(plan, started + limit), "out of time before it had a result"
    yield RunStarted(plan.cells, plan.request.profile, plan.request.seed, plan.notes)
    try:
        with closing(run.events()) as events:
            for event in events:
                yield event
                if plan.request.fail_fast and isinstance(event, CellFinished) and event.verdict.failed:
                    why = "stopped after the first failure"
                    break
        yield from run.rest(why)
    except KeyboardInterrupt:
        interrupted = True
        yield from run.so_far()
    yield RunFinished(run.verdicts, time.monotonic() - started, interrupted, timings=run.timings)


class _PlanRun:
    """Collects the verdicts of a run, and the time spent."""

    def __init__(self, plan: Plan, until: float) -> None:
        self._plan, self._until = plan, until
        self.timings = pop_seconds()  # spans of this process so far; forks start with none
        self._done: dict[Cell, Verdict] = {}
        self._found: dict[Cell, Verdict] = {}  # failures still being shrunk

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """In the order of the plan."""
        return tuple(self._done[cell] for cell in self._plan.cells if cell in self._done)

    def events(self) -> Generator[Event, None, None]:
        """The events of all units.

        A unit that used its share of time waits for the others, then goes on in the time they do not need.
        """
        units, device = self._plan.units, self._plan.request.device
        again = _OnceMore(units, self._done, self._unit)
        begun = [*map(self._unit, range(len(units)))]
        for event in run_on_every_core(begun, device, record_type=Event, retry=again, deadline=self._until + _GRACE):
            yield self._noted(event)

    def _unit(self, number: int, cells: tuple[Cell, ...] = ()) -> Callable[[], Iterator[Event]]:
        """A callable that runs one of the units, or some of its cells.

        It may use the part of its core's remaining time that its cells are of all remaining cells: a dozen properties
        take longer than one.
        """
        units = self._plan.units
        unit = replace(units[number], cells=cells) if cells else units[number]
        cores = os.cpu_count() or 1
        after = sum(len(later.cells) for later in units[number + cores :]) / cores
        return partial(_timed, unit, self._until, len(unit.cells) / (len(unit.cells) + after))

    def rest(self, why: str) -> Iterator[Event]:
        """Verdicts for cells that have none: their failure so far, or inconclusive."""
        yield from self.so_far()
        left = [cell for cell in self._plan.cells if cell not in self._done]
        yield from map(self._noted, inconclusive_verdicts(left, why))

    def so_far(self) -> Iterator[Event]:
        """Verdicts of failures not yet shrunk."""
        for cell, verdict in list(self._found.items()):
            if cell not in self._done:
                yield self._noted(CellFinished(verdict))

    def _noted(self, event: Event) -> Event:
        """Record the event and return it; an expected failure is marked as such."""
        if isinstance(event, CellFinished):
            event = CellFinished(self._plan.request.expected.apply(event.verdict))
            self._done[event.verdict.cell] = event.verdict
        elif isinstance(event, FailureFound):
            self._found[event.first_verdict.cell] = event.first_verdict
            event = FailureFound(self._plan.request.expected.apply(event.first_verdict))
        elif isinstance(event, Timings):
            for name, seconds in event.seconds.items():
                self.timings[name] = self.timings.get(name, 0.0) + seconds
        return event


def _timed(unit: Unit, until: float, share: float) -> Iterator[Event]:
    """The events of a unit with this share of the remaining time, and its timings."""
    now = time.monotonic()
    core_time = CoreTime(until, now + (until - now) * share)
    reported = core_time.clock()
    for event in run_unit(unit, core_time):
        if isinstance(event, CellFinished):
            reported, before = core_time.clock(), reported
            yield _timings(reported - before)
        yield event
    yield _timings(core_time.clock() - reported)


def _timings(seconds: float) -> Timings:
    spans = pop_seconds()
    return Timings({**spans, "other": max(seconds - sum(spans.values()), 0.0)})


def run_unit(unit: Unit, core_time: CoreTime) -> Iterator[Event]:
    """The events of one unit, in its own process."""
    if unit.kind == "evaluate":
        yield from evaluate_unit(unit, core_time)
        return
    each: Iterable[tuple[Cell, Iterator[Event]]]
    if unit.kind == "compile":
        each = compile_cells({cell: unit.forms[cell] for cell in unit.cells}, unit.target.request.compiled)
    else:
        each = ((cell, _sanitized(unit.target, cell)) for cell in unit.cells)
    for cell, events in each:
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


def _sanitized(target: CheckTarget, cell: Cell) -> Iterator[Event]:
    kernel, space = target.kernel, target.space(cell.dtype)
    location = Location.parse(kernel) if isinstance(kernel, str) else Location.from_function(kernel)
    assert location is not None  # else it could not have been opened on a GPU
    seed, timeout = target.request.seed, _SANITIZER_SLOWER * target.request.time_limit
    yield from sanitize_cell(cell, location, space, gradients=target.gradients, seed=seed, timeout=timeout)


class _OnceMore:
    """The replacement of a unit whose process ended.

    Its unfinished cells run once more. If the process ends again, only the loss is reported.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        done: Collection[Cell],
        run: Callable[[int, tuple[Cell, ...]], Callable[[], Iterator[Event]]],
    ) -> None:
        self._units, self._done, self._run = units, done, run
        self._lost: set[int] = set()

    def __call__(self, number: int, text: str) -> Callable[[], Iterator[Event]]:
        left = tuple(cell for cell in self._units[number].cells if cell not in self._done)
        if number in self._lost or not left:
            return partial(error_verdicts, left, text)
        self._lost.add(number)
        return self._run(number, left)
