"""Who computed, judged beside the cells of a kernel and dtype: a finding of its own, as slack is.

The first cases that pass are called again, traced and with the kernel's own launches doing nothing. One case in which
they change the answer settles it. A kernel fails if they change none of three, or none of those that a cell has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from packproof.base.names import EVERY_DTYPE
from packproof.base.names import PROVENANCE as NAME
from packproof.harness.report import Cell
from packproof.properties.cases import Case
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation
from packproof.properties.provenance import OWN_KERNELS, PROVENANCE

_MOST_CASES = 3  # a launch may serve a feature that a case lacks


@dataclass
class ProvenanceTrial:
    """Judges who computed the calls of one kernel in one dtype."""

    only_own: bool = False
    """Whether nothing but the kernel's own launches may compute. Then every case is judged."""
    is_settled: bool = False
    """Whether no further case is needed."""
    is_idle: bool = False
    """Whether the kernel's own launches turned out to make no part of its output."""
    _suspicions: dict[Case, Violation] = field(default_factory=dict)
    _cases: set[Case] = field(default_factory=set)

    @property
    def law(self) -> Property:
        return OWN_KERNELS if self.only_own else PROVENANCE

    def judge(
        self, kernel: KernelUnderTest, cases: Sequence[Case], *, are_last: bool
    ) -> Iterator[tuple[Case, Violation]]:
        """The finding and its case, if there is one: at most once.

        cases: of a cell, judged and passed.
        are_last: whether the cell has no more cases.
        """
        for case in cases:
            if not self.is_settled and case not in self._cases and case.n_tokens:
                self._try(kernel, case)
        enough = are_last or self.only_own or len(self._suspicions) >= _MOST_CASES
        if self._suspicions and enough and not self.is_settled:
            self.is_settled = True
            self.is_idle = not any(item.is_launch and not item.is_own for item in kernel.computed)
            yield next(iter(self._suspicions.items()))

    def _try(self, kernel: KernelUnderTest, case: Case) -> None:
        self._cases.add(case)
        violation, refusal = judge_case(kernel, self.law, case)
        if violation is not None:
            self._suspicions.setdefault(case, violation)
        elif refusal is None:
            self.is_settled = not self.only_own


def provenance_cell(cell: Cell) -> Cell:
    """The cell of the finding: one for all properties and dtypes of a kernel."""
    return replace(cell, property=NAME, dtype=EVERY_DTYPE, unpromised="", counts=True)
