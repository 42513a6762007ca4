"""From kernels to the cells that will run, and the units in which they run side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packproof.harness.engine.request import COMPILE, CheckRequest
from packproof.harness.engine.target import CheckTarget
from packproof.harness.results.events import Cell
from packproof.harness.results.questions import open_questions
from packproof.harness.results.text import printable


@dataclass(frozen=True)
class Unit:
    """Cells that run one after another in one process, such as those of one kernel and dtype, which share runs and
    references. kind: how they are judged."""

    kind: Literal["evaluate", "compile", "sanitize"]
    target: CheckTarget
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Plan:
    """Everything that a run will do. request: its profile, seed and device are those of the run as a whole.

    notes: what will not be tested.
    """

    request: CheckRequest
    units: tuple[Unit, ...]
    notes: tuple[str, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for unit in self.units for cell in unit.cells)


def plan(request: CheckRequest, targets: Sequence[CheckTarget], *, apart: bool = False) -> Plan:
    """The plan for these kernels, each by its own request.

    apart: each cell in a process of its own, so that none waits for what another one has to compile.
    """
    units = [unit for target, compiled in _compiled_once(targets) for unit in _units(target, compiled, apart=apart)]
    return Plan(request, tuple(units), tuple(note for target in targets for note in _notes(target)))


def _compiled_once(targets: Sequence[CheckTarget]) -> Iterator[tuple[CheckTarget, bool]]:
    """Each kernel, and whether it has a compile cell: the variants of a module belong to the first of its kernels."""
    modules: set[str] = set()
    for target in targets:
        builtin = target.builtin
        yield target, builtin is not None and builtin.module not in modules and target.request.compiles
        modules |= {builtin.module} if builtin else set()


def _units(target: CheckTarget, compiled: bool, *, apart: bool) -> Iterator[Unit]:
    request, op, name, device = target.request, printable(target.op.name), target.name, target.request.device
    if request.sanitizer is not None:
        for dtype in target.dtypes:
            yield Unit("sanitize", target, (Cell(op, name, request.sanitizer, dtype, device),))
        return
    if compiled:
        yield Unit("compile", target, (Cell(op, name, COMPILE, "all", device),))
    for dtype in target.dtypes:
        mine = tuple(_cells(target, dtype))
        yield from (Unit("evaluate", target, cells) for cells in ([(c,) for c in mine] if apart else [mine]) if cells)


def _cells(target: CheckTarget, dtype: str) -> Iterator[Cell]:
    """Each property at a dtype; after them what the kernel does not promise and is tested for all the same."""
    request = target.request

    def cell(name: str, beyond: str, *, counts: bool) -> Cell:
        return Cell(printable(target.op.name), target.name, name, dtype, request.device, beyond, counts)

    for name in request.laws:
        yield cell(name, target.beyond, counts=not target.beyond)
    if request.questions and not target.beyond:
        for question, _ in open_questions(target.declared):
            if question.property in request.laws:
                yield cell(question.property, question.word, counts=request.strict)


def _notes(target: CheckTarget) -> Iterator[str]:
    """What this kernel does not offer and is therefore not tested for."""
    if target.beyond:
        return
    if absent := target.not_offered:
        yield f"{target.name} does not take, so it is not tested for: {', '.join(absent)}"
    if not target.gradients:
        yield f"{target.name}: gradients are not judged"
