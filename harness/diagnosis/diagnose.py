"""Which sequence a wrong element depends on: redraw one sequence, or change its length, and compare the element."""

from math import isfinite, isnan

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
    """One line on the origin of a wrong value, or "" if unknown."""
    if violation.place.startswith("slack row") and not violation.text:
        return _SLACK
    key = violation.tensor
    has_place = not violation.text and violation.sequence >= 0 and len(case.lengths) <= _MOST_SUSPECTS
    if not has_place or key is None or key.kind not in ("output", "gradient"):
        return ""
    sample = kernel.sample(case)
    try:
        leaks = _sources(kernel, sample, case, violation, key)
        followed = [] if leaks else _lengths_followed(kernel, sample, case, violation, key)
    except (KernelFault, Refused):
        return ""
    what = f"{key.name}'s gradient" if key.is_gradient else key.name
    where = f"{what} in sequence {violation.sequence}"
    if leaks:
        return f"{where} contains {' and '.join(leaks)}"
    apart = f"{where} does not follow what other sequences hold"
    if followed:
        return f"{apart}, but {' and '.join(followed)}"
    return f"{apart}: the fault lies in its own computation, or in where it lies"


def _sources(kernel: KernelUnderTest, sample: Sample, case: Case, violation: Violation, key: TensorKey) -> list[str]:
    """The sequences whose values reach the wrong element, the slack among them."""
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


def _lengths_followed(
    kernel: KernelUnderTest, sample: Sample, case: Case, violation: Violation, key: TensorKey
) -> list[str]:
    """The other sequences whose number of tokens, or of keys, moves the wrong element by more than roundings may."""
    others = kernel.sample(case.replace(seed=case.seed + 3000))
    before = float(kernel.run(sample)[key][_index(sample, violation)])
    allowed = 2 * float(kernel.budget(key, sample).total[_index(sample, violation)])
    if not isfinite(allowed):
        return []
    found = []
    for keys in (False, True) if sample.key_lengths is not None else (False,):
        for i, n in enumerate(sample.key_lengths or () if keys else sample.lengths):
            changed = (sample.resized(i, m, others, keys=keys) for m in _other_lengths(n) if i != violation.sequence)
            if any(not _within(_moved(kernel, each, violation, key), before, allowed) for each in changed):
                found.append(f"the number of keys of sequence {i}" if keys else f"the length of sequence {i}")
    return found


def _other_lengths(n: int) -> list[int]:
    return [m for m in (n + 1, 2 * n + 5, n - 1, 0) if m >= 0 and m != n]


def _moved(kernel: KernelUnderTest, sample: Sample, violation: Violation, key: TensorKey) -> float | None:
    """The element in another pack; None if the kernel fails or declines there."""
    try:
        return float(kernel.run(sample)[key][_index(sample, violation)])
    except (KernelFault, Refused):
        return None


def _within(after: float | None, before: float, allowed: float) -> bool:
    same = after is None or after == before or (isnan(after) and isnan(before))
    return same or (after is not None and abs(after - before) <= allowed)


def _index(sample: Sample, violation: Violation) -> tuple[int, ...]:
    assert violation.tensor is not None
    offsets = sample.offsets_of(sample.axes[violation.tensor.name])
    row = violation.sequence if violation.position < 0 else offsets[violation.sequence] + violation.position
    return (row, *violation.index)


def _equal(a: Tensor, b: Tensor) -> bool:
    x, y = float(a), float(b)
    return x == y or (isnan(x) and isnan(y))
