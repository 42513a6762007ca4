"""What a wrong element contains: redraw one sequence at a time and see whether the element follows it."""

from math import isnan

from torch import Tensor

from packproof.properties.call import KernelFault, Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.tensor_key import TensorKey
from packproof.properties.violation import Violation

_MOST_SUSPECTS = 8
_SLACK = (
    "slack is rows past the last sequence, where outputs and gradients are 0; a kernel that gets none declares "
    "slack=False, or takes --domain 'slack == 0'"
)


def diagnose(kernel: KernelUnderTest, case: Case, violation: Violation) -> str:
    """One line on where a wrong value comes from, or "" where that is not known."""
    if violation.place.startswith("slack row") and not violation.text:
        return _SLACK
    if violation.text or violation.sequence < 0 or len(case.lengths) > _MOST_SUSPECTS:
        return ""
    sample, key = kernel.sample(case), violation.tensor
    if key is None or key.kind not in ("output", "gradient"):
        return ""
    try:
        leaks = _sources(kernel, sample, case, violation, key)
    except (KernelFault, Refused):
        return ""
    what = f"{key.name}'s gradient" if key.is_gradient else key.name
    if not leaks:
        return (
            f"{what} in sequence {violation.sequence} does not follow what other sequences hold: "
            "the fault lies in its own computation, or in where it lies"
        )
    return f"{what} in sequence {violation.sequence} contains {' and '.join(leaks)}"


def _sources(kernel: KernelUnderTest, sample: Sample, case: Case, violation: Violation, key: TensorKey) -> list[str]:
    """The sequences, and the slack, that the wrong element follows."""
    before = kernel.run(sample)[key]
    index = _index(sample, violation)
    redrawn = kernel.sample(case.replace(seed=case.seed + 3000))
    found = []
    for i, length in enumerate(case.lengths):
        if i == violation.sequence:
            continue
        after = kernel.run(sample.redraw_only(i, redrawn))[key]
        if not _equal(before[index], after[index]):
            found.append(f"sequence {i}" if length else f"the state of sequence {i}")
    if case.slack and not _equal(before[index], kernel.run(sample.with_slack(0.5))[key][index]):
        found.append("the slack")
    return found


def _index(sample: Sample, violation: Violation) -> tuple[int, ...]:
    assert violation.tensor is not None
    offsets = sample.offsets_of(sample.axes[violation.tensor.name])
    row = violation.sequence if violation.position < 0 else offsets[violation.sequence] + violation.position
    return (row, *violation.index)


def _equal(a: Tensor, b: Tensor) -> bool:
    x, y = float(a), float(b)
    return x == y or (isnan(x) and isnan(y))
