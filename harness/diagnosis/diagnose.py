"""What a wrong element contains: redraw one sequence at a time and see whether the element follows it."""

from math import isnan

from torch import Tensor

from packproof.properties.call import KernelFault, Refused
from packproof.properties.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.sample import Sample
from packproof.properties.violation import Violation

_MOST_SUSPECTS = 8


def diagnose(subject: KernelUnderTest, case: Case, violation: Violation) -> str:
    """One line on where a wrong value comes from, or "" where that cannot be said."""
    if violation.text or violation.sequence < 0 or len(case.lengths) > _MOST_SUSPECTS:
        return ""
    sample = subject.sample(case)
    if violation.tensor not in {*sample.outputs, *(f"gradient of {n}" for n in sample.wrt)}:
        return ""
    try:
        leaks = _sources(subject, sample, case, violation)
    except (KernelFault, Refused):
        return ""
    what = violation.tensor if not violation.tensor.startswith("gradient of ") else _possessive(violation.tensor)
    if not leaks:
        return (
            f"{what} in sequence {violation.sequence} does not follow what other sequences hold: "
            "the fault lies in its own computation, or in where it lies"
        )
    return f"{what} in sequence {violation.sequence} contains {' and '.join(leaks)}"


def _possessive(tensor: str) -> str:
    return f"{tensor.removeprefix('gradient of ')}'s gradient"


def _sources(subject: KernelUnderTest, sample: Sample, case: Case, violation: Violation) -> list[str]:
    """The sequences, and the slack, that the wrong element follows."""
    before = subject.run(sample)[violation.tensor]
    index = _index(sample, violation)
    redrawn = subject.sample(case.replace(seed=case.seed + 3000))
    found = []
    for i, length in enumerate(case.lengths):
        if i == violation.sequence:
            continue
        after = subject.run(sample.redraw_only(i, redrawn))[violation.tensor]
        if not _equal(before[index], after[index]):
            found.append(f"sequence {i}" if length else f"the state of sequence {i}")
    if case.slack and not _equal(before[index], subject.run(sample.with_slack(0.5))[violation.tensor][index]):
        found.append("the slack")
    return found


def _index(sample: Sample, violation: Violation) -> tuple[int, ...]:
    row = violation.sequence if violation.position < 0 else sample.offsets[violation.sequence] + violation.position
    return (row, *violation.index)


def _equal(a: Tensor, b: Tensor) -> bool:
    x, y = float(a), float(b)
    return x == y or (isnan(x) and isnan(y))
