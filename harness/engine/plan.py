"""From kernels to the cells to run, and the units that run them side by side."""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from packproof.harness.engine.request import CheckRequest
from packproof.harness.engine.target import CheckTarget
from packproof.harness.results.events import Cell
from packproof.harness.results.names import COMPILE
from packproof.harness.results.questions import open_questions
from packproof.harness.results.text import printable
from packproof.properties.calling.suggested_adapter import suggested_adapter
from packproof.properties.cases.space import Space
from packproof.properties.declaration import needed_inputs
from packproof.properties.laws.property import Property, SharedResults
from packproof.version import untried

_MANY_CORES = 4  # for each kernel and dtype
_MANY_KERNELS = 4  # for each core


@dataclass(frozen=True)
class Unit:
    """The cells that one process runs, one after another.

    They belong to one kernel and dtype, and share reference answers, kernel runs (or one half of the cells does), or
    nothing. With many kernels, one unit holds all dtypes. All compile cells form one unit.
    """

    kind: Literal["evaluate", "compile", "sanitize"]
    """How the cells are judged."""
    target: CheckTarget
    """The kernel."""
    cells: tuple[Cell, ...]
    forms: Mapping[Cell, str] = field(default_factory=dict)
    """For compile cells, the module that lists the kernel's variants."""


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
    """Untested features of the kernels."""


def plan(request: CheckRequest, targets: Sequence[CheckTarget], *, apart: bool = False) -> Plan:
    """The plan for these kernels, each by its own request.

    apart: each cell in a process of its own: none then waits for the compilations of another.
    """
    planned = [(target, tuple(_cells(target, compiled))) for target, compiled in _compiled_once(targets)]
    cores = _Cores.of(targets)
    cells = tuple(cell for _, of_target in planned for cell in of_target)
    return Plan(
        request,
        cells,
        (
            *_compiled_together(planned),
            *(u for target, of_it in planned for u in _units(target, of_it, apart=apart, cores=cores)),
        ),
        (
            *_about_releases(targets),
            *(note for target in targets for note in _notes(target)),
            *request.expected.notes(cells),
        ),
    )


@dataclass(frozen=True)
class _Cores:
    """How many cores each kernel gets."""

    each: float
    """Cores for each kernel and dtype."""
    few: bool
    """Whether kernels are so many that all dtypes of one run in one process."""
    last: frozenset[tuple[str, str]]
    """The (kernel, dtype) pairs that start last, when cores are idle; each runs as two processes."""

    @classmethod
    def of(cls, targets: Sequence[CheckTarget]) -> Self:
        cores = os.cpu_count() or 1
        every = [(target.name, dtype) for target in targets for dtype in target.dtypes]
        few, left = len(targets) >= _MANY_KERNELS * cores, len(every) % cores
        beside_idle = not few and len(every) > cores and 0 < 2 * left <= cores
        return cls(cores / max(len(every), 1), few, frozenset(every[-left:] if beside_idle else ()))

    def halves(self, cell: Cell) -> bool:
        """Whether to split the properties that share runs into two units.

        Both units ask the reference and compile the kernel.
        """
        return self.each >= _MANY_CORES or (cell.target, cell.dtype) in self.last


def _compiled_once(targets: Sequence[CheckTarget]) -> Iterator[tuple[CheckTarget, bool]]:
    """Each kernel, and whether it has a compile cell: only the first kernel with the same compiled variants has one."""
    modules: set[str] = set()
    for target in targets:
        builtin = target.builtin
        yield target, builtin is not None and builtin.kernel_module not in modules and target.request.compiles
        modules |= {builtin.kernel_module} if builtin else set()


def _cells(target: CheckTarget, compiled: bool) -> Iterator[Cell]:
    request, op, name, device = target.request, printable(target.op.name), target.name, target.request.device
    if request.sanitizer is not None:
        yield from (Cell(op, name, request.sanitizer, dtype, device) for dtype in target.dtypes)
        return
    if compiled:
        yield Cell(op, name, COMPILE, "all", device)
    for dtype in target.dtypes:
        yield from _judged_cells(target, dtype)


def _judged_cells(target: CheckTarget, dtype: str) -> Iterator[Cell]:
    """Each property at a dtype, then the unpromised properties tested all the same."""
    request = target.request

    def cell(name: str, beyond: str, *, counts: bool) -> Cell:
        return Cell(printable(target.op.name), target.name, name, dtype, request.device, beyond, counts)

    for name in request.laws:
        yield cell(name, target.unpromised, counts=not target.unpromised)
    if request.questions and not target.unpromised:
        for question, _ in open_questions(target.declared):
            if question.property in request.laws:
                yield cell(question.property, question.label, counts=request.strict)


def _compiled_together(planned: Sequence[tuple[CheckTarget, Sequence[Cell]]]) -> Iterator[Unit]:
    """The unit of all compile cells: one process imports the compiler for all."""
    forms = {
        cell: target.builtin.kernel_module
        for target, cells in planned
        for cell in cells
        if cell.property == COMPILE and target.builtin
    }
    if forms:
        yield Unit("compile", planned[0][0], tuple(forms), forms)


def _units(target: CheckTarget, cells: Sequence[Cell], *, apart: bool, cores: _Cores) -> Iterator[Unit]:
    request = target.request
    together: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        if request.sanitizer is not None:
            yield Unit("sanitize", target, (cell,))
        elif cell.property != COMPILE:
            dtype = "" if cores.few else cell.dtype  # imported and rewritten once for all dtypes
            key = cell if apart else (*_shared(target, cell, cores), dtype)
            together.setdefault(key, []).append(cell)
    yield from (Unit("evaluate", target, tuple(alike)) for alike in together.values())


def _shared(target: CheckTarget, cell: Cell, cores: _Cores) -> tuple[SharedResults, bool]:
    """What the unit of a cell shares, and whether the cell is in its second half."""
    laws = target.request.laws
    law = laws[cell.property]
    if law.shares == "nothing" and _is_skipped(law, target.space(cell.dtype)):
        return "runs", False  # a process of its own would only start and end
    # a unit of its own for the properties that share reference answers needs a free core:
    # without one, a second process would only compute the same answers again
    alone = {"reference", "nothing"} if cores.each > 1 else {"nothing"}
    if law.shares in alone:
        return law.shares, False
    of_runs = [name for name, other in laws.items() if other.shares not in alone]
    return "runs", cores.halves(cell) and of_runs.index(cell.property) % 2 == 1


def _is_skipped(law: Property, space: Space) -> bool:
    try:
        return bool(law.skip_reason(space))
    except Exception:  # its cell will report it
        return False


def _about_releases(targets: Sequence[CheckTarget]) -> Iterator[str]:
    """Notes on untested releases, with the results of their self-tests."""
    devices = {target.request.device for target in targets}
    misfit = next((target.misfit for target in targets if target.misfit), "")
    for package, sentence in untried():
        if package == "torch":
            from packproof.harness.execution.self_test import require_sound_judgement  # noqa: PLC0415  (seldom needed)

            require_sound_judgement(sentence)
        unproved = package == "triton" and (misfit or devices != {"cpu"})  # its self-test proves nothing for a GPU
        yield sentence if unproved else f"{sentence}; self-test passed"
    if misfit:
        yield f"Triton kernels cannot be interpreted: {misfit}"


def _notes(target: CheckTarget) -> Iterator[str]:
    """Features this kernel does not offer, and is therefore not tested for."""
    if target.unpromised:
        return
    caught = target.missing_names if target.declared.catch_all else []
    if absent := [name for name in target.missing_features if name not in caught]:
        yield f"{target.name} does not take, so it is not tested for: {', '.join(absent)}"
    if caught:
        yield (
            f"{target.name} takes by its catch-all alone (**kwargs), which may ignore them, so they are not passed: "
            f"{', '.join(caught)}; name those that it supports in its signature, or in an adapter's names"
        )
    declared = target.declared
    if declared.fixed:
        values = ", ".join(f"{name}={value!r}" for name, value in declared.fixed.items())
        yield f"{target.name} has fixed, so it is not tested without: {values}"
    if made := declared.metadata(target.op):
        yield f"{target.name} takes {', '.join(made)}: made of cu_seqlens"
    if left_out := declared.omitted_metadata(target.op):
        line = suggested_adapter(target.name, target.op.name, [], left_out)
        names = ", ".join(left_out)
        yield f"{target.name} has defaults for {names} beside cu_seqlens, which stay; to pass them: {line}"
    if needed := needed_inputs(target.op, target.declared).texts:
        yield f"{target.name} has no default for, so it is not tested without: {', '.join(needed)}"
    if not target.gradients:
        yield f"{target.name}: gradients are not judged"
