"""Rows past the last sequence: whether a kernel fails because of them alone, as a finding of its own.

Many kernels leave such rows as they are, and fail every property there. The finding is reported once. The check then
goes on without slack, as after a refusal, and finds what else is wrong.
"""

from contextlib import nullcontext
from dataclasses import replace

from packproof.base.names import EVERY_DTYPE, SLACK
from packproof.harness.check.diagnosis.rows import unwritten_rows
from packproof.harness.report import Cell
from packproof.properties.cases import Case, Domain, Space
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import Property, Violation

WITHOUT_SLACK = Domain.of("slack == 0")
CHECKED_WITHOUT = "the other properties were checked without rows past the last sequence"


def slack_cell(cell: Cell) -> Cell:
    """The cell of the finding: one for all properties and dtypes of a kernel."""
    return replace(cell, property=SLACK, dtype=EVERY_DTYPE)


def filled_case(case: Case) -> Case:
    """The case with a last sequence in place of the slack."""
    keys = None if case.key_lengths is None else (*case.key_lengths, case.slack)
    return case.replace(lengths=(*case.lengths, case.slack), key_lengths=keys, slack=0)


def fails_as_sequence(kernel: KernelUnderTest, law: Property, case: Case, violation: Violation, space: Space) -> bool:
    """Whether a last sequence in place of the slack breaks the law in the same way: a hint at another fault.

    space: the space of the kernel's cases.
    """
    filled = filled_case(case)
    return space.domain.allows(space.op, filled) and judge_case(kernel, law, filled, violation)[0] is not None


def fails_by_slack(kernel: KernelUnderTest, law: Property, case: Case, violation: Violation, space: Space) -> bool:
    """Whether the violation at a case is gone without its slack rows, and back with them.

    A row that is never written is no fault of slack if it also occurs with a last sequence in place of the slack.

    space: the space of the kernel's cases.
    """
    without = space.fit(case.replace(slack=0)) if case.slack else None
    if without is None or without.slack or without.lengths != case.lengths:
        return False  # no slack, or the kernel's domain requires it
    with kernel.runner.with_short_timeout() if violation.fault == "hung" else nullcontext():
        if judge_case(kernel, law, without, violation)[0] is not None:
            return False
        if violation.tensor in unwritten_rows(kernel, kernel.sample(filled_case(case)), violation):
            return False
        kernel.cache.discard_results()  # a kernel that fails now and then is not judged by one answer
        return judge_case(kernel, law, case, violation)[0] is not None
