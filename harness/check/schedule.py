"""Runs the units of a plan side by side and merges their events. A lost unit runs once more."""

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain

from packproof.base.machine import available_cores
from packproof.base.names import FINDINGS
from packproof.base.stopwatch import pop_seconds
from packproof.base.wording import printable
from packproof.harness.check.contract_finding import contract_findings
from packproof.harness.check.counterexamples import CounterexampleTrial, counterexample_trials
from packproof.harness.check.own_faults import error_verdicts, inconclusive_verdicts
from packproof.harness.check.partition import Unit
from packproof.harness.check.plan import Plan
from packproof.harness.check.provenance import provenance_cell
from packproof.harness.check.unit import run_unit
from packproof.harness.process import CoreTime, run_on_every_core
from packproof.harness.report import Cell, CellFinished, Event, FailureFound, RunFinished, RunStarted, Timings, Verdict

_TRIAL_SHARE = 0.25  # of the time of a run, for counterexamples in other cells
_LEAST_TRIAL_SECONDS = 2.0  # for a process to start and answer
_GRACE = 30.0

StartUnit = Callable[[], Iterator[Event]]


def run_plan(plan: Plan, grace: float = _GRACE) -> Iterator[Event]:
    """Every event of the run, from RunStarted to RunFinished, with verdicts in the order of the plan.

    grace: seconds past its end, for an open call to return and a failure to be shrunk.

    Units run side by side, each in a process of its own, one for each core. Ctrl-C ends the stream with
    RunFinished(interrupted=True) and all results so far.
    """
    start, interrupted = time.monotonic(), False
    run, reason = _PlanRun(plan, start + plan.seconds, grace), "out of time before it had a result"
    yield RunStarted(plan.cells, plan.request.profile, plan.request.seed, plan.notes, plan.request.contract, plan.walls)
    try:
        with closing(run.events()) as events:
            for event in chain(run.contract_findings(), run.held_back(), events):
                yield event
                if plan.request.fail_fast and isinstance(event, CellFinished) and event.verdict.failed:
                    reason = "stopped after the first failure"
                    break
            else:
                yield from run.counterexample_trials()
        yield from run.unfinished_cells(reason)
    except KeyboardInterrupt:
        interrupted = True
        yield from run.unshrunk_failures()
    yield RunFinished(run.verdicts, time.monotonic() - start, interrupted, timings=run.timings)


class _PlanRun:
    """Collects the verdicts of a run, and the time spent."""

    def __init__(self, plan: Plan, deadline: float, grace: float) -> None:
        self._plan, self._deadline, self._grace = plan, deadline, grace
        self._start = time.monotonic()
        self.timings = pop_seconds()  # spans of this process so far; forks start with none
        self._verdicts: dict[Cell, Verdict] = {}
        self._first_verdicts: dict[Cell, Verdict] = {}  # failures still being shrunk
        self._raw_verdicts: dict[Cell, Verdict] = {}  # whatever was expected
        self._terms = {(printable(target.op.name), target.name): target.terms for target in plan.targets}

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """In the order of the plan. Findings beside it stand before the cells of their kernel."""
        order = {(cell.op, cell.target): number for number, cell in reversed([*enumerate(self._plan.cells)])}
        planned = [cell for cell in self._plan.cells if cell in self._verdicts]
        findings = [cell for cell in self._verdicts if cell.property in FINDINGS]
        cells = sorted([*findings, *planned], key=lambda cell: order[cell.op, cell.target])
        return tuple(self._with_found_tier(self._verdicts[cell]) for cell in cells)

    def _with_found_tier(self, verdict: Verdict) -> Verdict:
        """The verdict with the tier of what made the output: the launches of a cheat are seen in one process."""
        finding = self._verdicts.get(provenance_cell(verdict.cell))
        return replace(verdict, tier=finding.tier) if finding and verdict.tier == "interpret" else verdict

    def contract_findings(self) -> Iterator[Event]:
        """The kernels that loosen their contract."""
        yield from map(self._record, contract_findings(self._plan.targets))

    def held_back(self) -> Iterator[Event]:
        """The cells in quarantine, skipped."""
        for cell, reason in self._plan.held_back.items():
            yield self._record(CellFinished(Verdict(cell, "eager", "skipped", 0, 0.0, reason=reason)))

    def events(self) -> Generator[Event, None, None]:
        """The events of all units.

        A unit that used its share of time waits for the others, then goes on in the time they do not need.
        """
        units, device = self._plan.units, self._plan.request.device
        retry = _Retry(units, self._verdicts, self._start_unit)
        calls = [*map(self._start_unit, range(len(units)))]
        deadline = self._deadline + self._grace
        for event in run_on_every_core(calls, device, record_type=Event, retry=retry, deadline=deadline):
            if not self._repeats_finding(event):
                yield self._record(event)

    def counterexample_trials(self) -> Iterator[Event]:
        """The cells that passed and fail at the smallest case of another one: found in a share of the time so far."""
        targets = {
            (unit.target.name, unit.target.unpromised): unit.target
            for unit in self._plan.units
            if unit.kind == "evaluate"
        }
        trials = list(counterexample_trials([*targets.values()], [*self._raw_verdicts.values()]))
        now = time.monotonic()
        deadline = min(now + trial_seconds(now - self._start), self._deadline)
        if not trials or deadline <= now:
            return
        calls = [partial(trial.events, deadline) for trial in trials]
        retry = partial(_report_lost_trial, trials)
        for event in run_on_every_core(calls, self._plan.request.device, record_type=Event, retry=retry):
            yield self._record(event)

    def _repeats_finding(self, event: Event) -> bool:
        """Whether another process has already reported this finding of the kernel: each one comes to it by itself."""
        if not isinstance(event, CellFinished):
            return False
        cell = event.verdict.cell
        return cell.property in FINDINGS and cell in self._verdicts

    def _start_unit(self, number: int, cells: tuple[Cell, ...] = ()) -> StartUnit:
        """A callable that runs one of the units, or some of its cells, in its share of the remaining time."""
        unit = self._plan.units[number]
        unit = replace(unit, cells=cells) if cells else unit
        later_units = [len(later_unit.cells) for later_unit in self._plan.units[number + 1 :]]
        share = time_share(len(unit.cells), later_units, available_cores())
        return partial(_run_timed, unit, self._deadline, share)

    def unfinished_cells(self, reason: str) -> Iterator[Event]:
        """Verdicts for cells that have none: their failure so far, or inconclusive."""
        yield from self.unshrunk_failures()
        cells = [cell for cell in self._plan.cells if cell not in self._verdicts]
        yield from map(self._record, inconclusive_verdicts(cells, reason))

    def unshrunk_failures(self) -> Iterator[Event]:
        """Verdicts of failures not yet shrunk."""
        for cell, verdict in list(self._first_verdicts.items()):
            if cell not in self._verdicts:
                yield self._record(CellFinished(verdict))

    def _record(self, event: Event) -> Event:
        """Record the event and return it; an expected failure is marked as such."""
        if isinstance(event, CellFinished):
            self._raw_verdicts[event.verdict.cell] = event.verdict
            cell = event.verdict.cell
            verdict = replace(event.verdict, terms=self._terms.get((cell.op, cell.target), ()))
            event = CellFinished(self._plan.request.expected.apply(verdict))
            self._verdicts[event.verdict.cell] = event.verdict
        elif isinstance(event, FailureFound):
            self._first_verdicts[event.first_verdict.cell] = event.first_verdict
            event = FailureFound(self._plan.request.expected.apply(event.first_verdict))
        elif isinstance(event, Timings):
            for name, seconds in event.seconds.items():
                self.timings[name] = self.timings.get(name, 0.0) + seconds
        return event


def time_share(n_cells: int, later_units: Sequence[int], cores: int) -> float:
    """The part of the remaining time that a unit may use: its cells, of all remaining cells on its core.

    later_units: the numbers of cells of the units after it. The next ones start on the other cores.
    """
    n_later_cells = sum(later_units[cores - 1 :]) / cores  # a dozen properties take longer than one
    return n_cells / (n_cells + n_later_cells)


def trial_seconds(run_seconds: float) -> float:
    """The most seconds for counterexamples in other cells, after a run of so many."""
    return max(_LEAST_TRIAL_SECONDS, _TRIAL_SHARE * run_seconds)


def _run_timed(unit: Unit, deadline: float, share: float) -> Iterator[Event]:
    """The events of a unit with this share of the remaining time, and its timings."""
    now = time.monotonic()
    core_time = CoreTime(deadline, now + (deadline - now) * share)
    reported = core_time.clock()
    for event in run_unit(unit, core_time):
        if isinstance(event, CellFinished):
            reported, previous = core_time.clock(), reported
            yield _timings(reported - previous)
        yield event
    yield _timings(core_time.clock() - reported)


def _timings(seconds: float) -> Timings:
    spans = pop_seconds()
    return Timings({**spans, "other": max(seconds - sum(spans.values()), 0.0)})


def _report_lost_trial(trials: Sequence[CounterexampleTrial], number: int, text: str) -> StartUnit:
    return partial(error_verdicts, [verdict.cell for verdict in trials[number].passed], text)


class _Retry:
    """The replacement of a unit whose process ended.

    Its unfinished cells run once more. If the process ends again, only the loss is reported.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        finished_cells: Collection[Cell],
        start_unit: Callable[[int, tuple[Cell, ...]], StartUnit],
    ) -> None:
        self._units, self._finished_cells, self._start_unit = units, finished_cells, start_unit
        self._repeated: set[int] = set()

    def __call__(self, number: int, text: str) -> StartUnit:
        cells = tuple(cell for cell in self._units[number].cells if cell not in self._finished_cells)
        if number in self._repeated or not cells:
            return partial(error_verdicts, cells, text)
        self._repeated.add(number)
        return self._start_unit(number, cells)
