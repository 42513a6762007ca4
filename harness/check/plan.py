"""From kernels to the plan of a check: its cells (each kernel by property, dtype and tier), units and notes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packproof.base.machine import available_cores
from packproof.base.names import COMPILE
from packproof.base.wording import printable
from packproof.harness.check.notes import feature_notes, release_notes
from packproof.harness.check.partition import Unit, divide
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.report import Cell
from packproof.properties.declarations import open_questions

_QUICK_SECONDS = 300.0  # for each kernel, where `max_time` says nothing; most take less than thirty


@dataclass(frozen=True)
class Plan:
    """All the work of a run."""

    request: CheckRequest
    """Gives the profile, seed and device of the whole run."""
    cells: tuple[Cell, ...]
    """The cells of all units, in the order of reports."""
    units: tuple[Unit, ...]
    """The cells, as they are distributed over processes."""
    notes: tuple[str, ...]
    """Untested releases, and features that the kernels do not offer."""
    targets: tuple[CheckTarget, ...] = ()
    """The kernels."""
    held_back: Mapping[Cell, str] = field(default_factory=dict)
    """The cells in no unit, which are in quarantine, each with the reason."""

    @property
    def seconds(self) -> float:
        """How long the run may take. A quick one is bounded on a CPU, where chunks of thousands of tokens take long."""
        if self.request.max_time is not None:
            return self.request.max_time
        is_bounded = self.request.profile == "quick" and self.request.device == "cpu"
        return _QUICK_SECONDS * max(len(self.targets), 1) if is_bounded else math.inf

    @property
    def walls(self) -> dict[str, bool]:
        """Whether each wall holds around all kernels."""
        names = self.targets[0].walls if self.targets else ()
        return {name: all(target.walls.get(name, False) for target in self.targets) for name in names}


def plan(request: CheckRequest, targets: Sequence[CheckTarget], *, one_cell_each: bool = False) -> Plan:
    """The plan for these kernels, each by its own request.

    one_cell_each: see `divide`.
    """
    planned = [(target, tuple(_cells(target, compiled=compiled))) for target, compiled in _compiled_once(targets)]
    cells = tuple(cell for _, target_cells in planned for cell in target_cells)
    notes = (
        *release_notes(targets),
        *(note for target in targets for note in feature_notes(target)),
        *request.expected.notes(cells),
        *(
            f"{target.name}: calls outside of {e.domain} are {e.text}"
            for target in targets
            for e in target.quarantine
            if e.domain
        ),
    )
    held_back = {cell: entry.text for cell in cells for entry in request.expected.quarantined if entry.holds_back(cell)}
    launched = [
        (target, tuple(cell for cell in planned_cells if cell not in held_back)) for target, planned_cells in planned
    ]
    units = tuple(divide(launched, available_cores(), one_cell_each=one_cell_each))
    return Plan(request, cells, units, notes, tuple(targets), held_back)


def _compiled_once(targets: Sequence[CheckTarget]) -> Iterator[tuple[CheckTarget, bool]]:
    """Each kernel, and whether it has a compile cell: only the first kernel with the same compiled variants has one."""
    modules: set[str] = set()
    for target in targets:
        builtin = target.builtin
        yield target, builtin is not None and builtin.kernel_module not in modules and target.request.compiles
        modules |= {builtin.kernel_module} if builtin else set()


def _cells(target: CheckTarget, *, compiled: bool) -> Iterator[Cell]:
    """The cells of a kernel, tier by tier, dtype by dtype."""
    request, op, name, device = target.request, printable(target.op.name), target.name, target.request.device
    if request.sanitizer is not None:
        yield from (Cell(op, name, request.sanitizer, dtype, device) for dtype in target.dtypes)
        return
    if compiled:
        yield Cell(op, name, COMPILE, "all", device)
    for dtype in target.dtypes:
        yield from _property_cells(target, dtype)


def _property_cells(target: CheckTarget, dtype: str) -> Iterator[Cell]:
    """Each property at a dtype, then the unpromised properties tested all the same."""
    request = target.request

    def cell(name: str, unpromised: str, *, counts: bool) -> Cell:
        return Cell(printable(target.op.name), target.name, name, dtype, request.device, unpromised, counts)

    for name in request.laws:
        yield cell(name, target.unpromised, counts=not target.unpromised)
    if request.questions and not target.unpromised:
        for question, _ in open_questions(target.declared):
            if question.property in request.laws:
                yield cell(question.property, question.label, counts=request.strict)
