"""Runs the units of a plan side by side and merges their events; a unit that was lost runs once more."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from packproof.harness.compile.cell import compile_cell
from packproof.harness.compute_sanitizer.cell import sanitized_cell
from packproof.harness.engine.evaluate import evaluate_unit
from packproof.harness.engine.own_faults import caught, not_judged
from packproof.harness.engine.plan import Plan, Unit
from packproof.harness.engine.target import CheckTarget
from packproof.harness.results.events import Cell, CellFinished, Event, RunFinished, RunStarted, Verdict
from packproof.harness.targets.location import Location
from packproof.harness.worker.parallel import on_every_core

_SANITIZER_SLOWER = 10  # times the limit of one call, for all golden cases


def run_plan(plan: Plan) -> Iterator[Event]:
    """Every event of the run, from RunStarted to RunFinished, whose verdicts are in the order of the plan.

    Kernels and dtypes run side by side, each in a process of its own, as many as there are cores. Ctrl-C ends the
    stream with RunFinished(interrupted=True) and all that was found so far.
    """
    started = time.monotonic()
    verdicts: list[Verdict] = []
    interrupted = False
    yield RunStarted(plan.cells, plan.request.profile, plan.request.seed, plan.notes)
    units = [partial(run_unit, unit) for unit in plan.units]
    try:
        for event in on_every_core(units, plan.request.device, of=Event, again=_OnceMore(plan.units, verdicts)):
            if isinstance(event, CellFinished):
                verdicts.append(event.verdict)
            yield event
    except KeyboardInterrupt:
        interrupted = True
    place = {cell: number for number, cell in enumerate(plan.cells)}
    verdicts.sort(key=lambda verdict: place[verdict.cell])
    yield RunFinished(tuple(verdicts), time.monotonic() - started, interrupted)


def run_unit(unit: Unit) -> Iterator[Event]:
    """The events of one unit, in the process that it was given."""
    if unit.kind == "evaluate":
        yield from evaluate_unit(unit)
        return
    for cell in unit.cells:
        if unit.kind == "compile":
            assert unit.target.builtin is not None
            yield from caught(cell, compile_cell(cell, unit.target.builtin))
        else:
            yield from caught(cell, _sanitized(unit.target, cell))


def _sanitized(target: CheckTarget, cell: Cell) -> Iterator[Event]:
    kernel, space = target.kernel, target.space(cell.dtype)
    location = Location.parse(kernel) if isinstance(kernel, str) else Location.of(kernel)
    assert location is not None  # else it could not have been opened on a GPU
    seed, timeout = target.request.seed, _SANITIZER_SLOWER * target.request.time_limit
    yield from sanitized_cell(cell, location, space, gradients=target.gradients, seed=seed, timeout=timeout)


class _OnceMore:
    """What runs instead of a unit whose process ended: its other cells once more, then only the report of the loss."""

    def __init__(self, units: Sequence[Unit], verdicts: Sequence[Verdict]) -> None:
        self._units, self._verdicts = units, verdicts
        self._lost: set[int] = set()

    def __call__(self, number: int, text: str) -> Callable[[], Iterator[Event]]:
        unit, done = self._units[number], {verdict.cell for verdict in self._verdicts}
        left = tuple(cell for cell in unit.cells if cell not in done)
        if number in self._lost:
            return partial(not_judged, left, text)
        self._lost.add(number)
        return partial(run_unit, replace(unit, cells=left))
