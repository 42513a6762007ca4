"""Who computed, judged beside the cells of a kernel and dtype: a finding of its own, as slack is.

The cases of a cell that pass are called again, traced and with the kernel's own launches doing nothing. One in which
they change the answer settles it. A kernel fails if they change none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from packproof.base.names import EVERY_DTYPE
from packproof.base.names import PROVENANCE as NAME
from packproof.harness.check.failure import CellViolation
from packproof.harness.report import Cell
from packproof.properties.cases import Case, Space
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation
from packproof.properties.provenance import OWN_KERNELS, PROVENANCE

_MOST_CASES = 12  # a launch may serve a feature or a size that a case lacks


@dataclass
class ProvenanceTrial:
    """Judges who computed the calls of one kernel in one dtype."""

    only_own: bool = False
    """Whether nothing but the kernel's own launches may compute. Then the cases of all cells are judged."""
    is_settled: bool = False
    """Whether no further case is needed."""
    is_idle: bool = False
    """Whether the launches turned out to make no part of the output."""
    _cell: Cell | None = None
    """The cell whose cases are judged."""
    _suspicions: dict[Case, Violation] = field(default_factory=dict)
    _cases: dict[Case, None] = field(default_factory=dict)

    @property
    def law(self) -> Property:
        return OWN_KERNELS if self.only_own else PROVENANCE

    def judge(
        self, cell: Cell, space: Space, kernel: KernelUnderTest, cases: Sequence[Case], *, are_last: bool
    ) -> Iterator[CellViolation]:
        """The finding, if there is one: at most once.

        space: of the cell's cases.
        cases: of the cell, judged and passed.
        are_last: whether the cell has no more cases.
        """
        if cell.unpromised:
            return
        self._cell = self._cell or cell
        if not (self.only_own or cell == self._cell):
            return
        for case in cases:
            if not self.is_settled and case not in self._cases and case.n_tokens:
                self._try(kernel, case)
        enough = are_last or self.only_own or len(self._suspicions) >= _MOST_CASES
        if self._suspicions and enough and not self.is_settled:
            self.is_settled = True
            case, violation = next(iter(self._suspicions.items()))
            self.is_idle = launches_are_idle(kernel, case)
            number = list(self._cases).index(case) + 1
            finding_cell = replace(cell, property=NAME)
            yield CellViolation(finding_cell, self.law, space, case, violation, number, is_smallest=True)

    def _try(self, kernel: KernelUnderTest, case: Case) -> None:
        self._cases[case] = None
        violation, refusal = judge_case(kernel, self.law, case)
        if violation is not None:
            self._suspicions.setdefault(case, violation)
        elif refusal is None:
            self.is_settled = not self.only_own


def launches_are_idle(kernel: KernelUnderTest, case: Case) -> bool:
    """Whether no launch makes a part of the kernel's output at a case: its own do nothing, and a library has none."""
    violation = judge_case(kernel, PROVENANCE, case)[0]
    is_same_answer = violation is not None and violation.tensor is None
    return is_same_answer and not any(item.is_launch and not item.is_own for item in kernel.computed)


def provenance_cell(cell: Cell) -> Cell:
    """The cell of the finding: one for all properties and dtypes of a kernel."""
    return replace(cell, property=NAME, dtype=EVERY_DTYPE)
