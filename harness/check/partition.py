"""Divides the cells of a plan into units, one process each, by the cores that each kernel has."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from packproof.base.names import COMPILE
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.report import Cell
from packproof.properties.cases import Space
from packproof.properties.laws import Property, SharedResults

_AMPLE_CORES = 4  # for each kernel and dtype
_MANY_KERNELS = 4  # for each core

CoreSupply = Literal["scarce", "idle at the end", "enough", "ample"]

# The unit of a cell. Row: the cores of its kernel and dtype. Column: what its property shares with others.
# Two names: its properties alternate between two units. Cells with the same name run in one process.
UNITS: Mapping[CoreSupply, Mapping[SharedResults, tuple[str, ...]]] = {
    # without a free core, a second process would only compute the same reference answers again
    "scarce": {"reference": ("runs",), "runs": ("runs",), "nothing": ("nothing",)},
    "idle at the end": {"reference": ("runs 1", "runs 2"), "runs": ("runs 1", "runs 2"), "nothing": ("nothing",)},
    "enough": {"reference": ("reference",), "runs": ("runs",), "nothing": ("nothing",)},
    # both halves ask the reference and compile the kernel
    "ample": {"reference": ("reference",), "runs": ("runs 1", "runs 2"), "nothing": ("nothing",)},
}


@dataclass(frozen=True)
class Unit:
    """The cells that one process runs, one after another.

    They belong to one kernel; all compile cells form one unit.
    """

    kind: Literal["evaluate", "compile", "sanitize"]
    """How the cells are judged."""
    target: CheckTarget
    """The kernel."""
    cells: tuple[Cell, ...]
    kernel_modules: Mapping[Cell, str] = field(default_factory=dict)
    """For compile cells, the module that lists the kernel's variants."""


@dataclass(frozen=True)
class CoreShares:
    """How the kernels and dtypes of a plan share the cores."""

    cores_per_kernel: float
    """Cores for each kernel and dtype."""
    dtypes_in_one_process: bool
    """With many kernels, each is imported and rewritten once for all its dtypes."""
    split_in_two: frozenset[tuple[str, str]]
    """The (kernel, dtype) pairs that start last, when cores are idle; each runs as two processes."""

    @classmethod
    def for_kernels(cls, kernels: Sequence[tuple[str, Sequence[str]]], cores: int) -> Self:
        """The share of each kernel and dtype.

        kernels: their names and dtypes, in the order in which they start. A name may occur twice.
        """
        pairs = [(name, dtype) for name, dtypes in kernels for dtype in dtypes]
        dtypes_in_one_process = len(kernels) >= _MANY_KERNELS * cores
        n_last = len(pairs) % cores  # they start together, once all cores but theirs are idle
        splits = not dtypes_in_one_process and len(pairs) > cores and 0 < 2 * n_last <= cores
        return cls(cores / max(len(pairs), 1), dtypes_in_one_process, frozenset(pairs[-n_last:] if splits else ()))

    def supply(self, cell: Cell) -> CoreSupply:
        """The row of UNITS for a cell."""
        if self.cores_per_kernel >= _AMPLE_CORES:
            return "ample"
        if self.cores_per_kernel > 1:
            return "enough"
        return "idle at the end" if (cell.target, cell.dtype) in self.split_in_two else "scarce"


def divide(
    planned: Sequence[tuple[CheckTarget, Sequence[Cell]]], cores: int, *, one_cell_each: bool = False
) -> Iterator[Unit]:
    """The units of the cells of each kernel, in the order in which they start.

    cores: of this machine.
    one_cell_each: each cell has a unit of its own, so that none waits for the compilations of another.
    """
    yield from _compile_unit(planned)
    shares = CoreShares.for_kernels([(target.name, target.dtypes) for target, _ in planned], cores)
    for target, cells in planned:
        units: dict[Hashable, list[Cell]] = {}
        for cell in cells:
            if cell.property != COMPILE:
                key = cell if one_cell_each or target.request.sanitizer else _unit_key(target, cell, shares)
                units.setdefault(key, []).append(cell)
        kind: Literal["evaluate", "sanitize"] = "sanitize" if target.request.sanitizer else "evaluate"
        yield from (Unit(kind, target, tuple(unit)) for unit in units.values())


def _compile_unit(planned: Sequence[tuple[CheckTarget, Sequence[Cell]]]) -> Iterator[Unit]:
    """The unit of all compile cells: one process imports the compiler for all."""
    kernel_modules = {
        cell: target.builtin.kernel_module
        for target, cells in planned
        for cell in cells
        if cell.property == COMPILE and target.builtin
    }
    if kernel_modules:
        yield Unit("compile", planned[0][0], tuple(kernel_modules), kernel_modules)


def _unit_key(target: CheckTarget, cell: Cell, cores: CoreShares) -> tuple[str, str]:
    """The unit of a cell: its name in UNITS, and its dtype ("" if the unit has all dtypes).

    Cells of a kernel with the same key run in one process.
    """
    names_by_sharing, laws = UNITS[cores.supply(cell)], target.request.laws
    law = laws[cell.property]
    dtype = "" if cores.dtypes_in_one_process else cell.dtype
    if law.shares == "nothing" and _is_skipped(law, target.space(cell.dtype)):
        return names_by_sharing["runs"][0], dtype  # a process of its own would only start and end
    names = names_by_sharing[law.shares]
    # all properties of these units alternate between them, in the order of the request
    alternating_laws = [law_name for law_name, law in laws.items() if names_by_sharing[law.shares] == names]
    return names[alternating_laws.index(cell.property) % len(names)], dtype


def _is_skipped(law: Property, space: Space) -> bool:
    try:
        return bool(law.skip_reason(space))
    except Exception:  # its cell will report it
        return False
