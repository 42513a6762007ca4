"""Which sequence a wrong element depends on: redraw one sequence, or change its length, and compare the element."""

from dataclasses import replace
from math import isfinite, isnan

from torch import Tensor

from packproof.base.errors import KernelFault
from packproof.properties.calling import Refusal, TensorKey
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Violation

_MAX_SEQUENCES = 8
_OWN_FAULT = "the fault lies in its own computation, or in where it lies"
SLACK_HINT = (
    "slack is rows past the last sequence: outputs and gradients there must be 0, and their contents, NaN included, "
    "must change nothing; a kernel that never gets such rows declares slack=False, or is checked with --domain "
    "'slack == 0'"
)


def diagnose(kernel: KernelUnderTest, case: Case, violation: Violation) -> str:
    """One line on the origin of a wrong value, or "" if unknown."""
    if violation.in_slack and not violation.text:
        return SLACK_HINT
    key = violation.tensor
    has_location = not violation.text and violation.sequence >= 0 and len(case.lengths) <= _MAX_SEQUENCES
    if not has_location or key is None or key.kind not in ("output", "gradient"):
        return ""
    try:
        return _origin(kernel, case, violation, key)
    except (KernelFault, Refusal):
        return ""


def _origin(kernel: KernelUnderTest, case: Case, violation: Violation, key: TensorKey) -> str:
    sample = kernel.sample(case)
    leaks = _leaking_sequences(kernel, sample, case, violation, key)
    dependences = [] if leaks else _length_dependences(kernel, sample, case, violation, key)
    tensor_name = f"{key.name}'s gradient" if key.is_gradient else key.name
    location = f"{tensor_name} in sequence {violation.sequence}"
    if leaks:
        return f"{location} contains {' and '.join(leaks)}"
    if dependences:
        return f"{location} does not follow what other sequences hold, but {' and '.join(dependences)}"
    if len(case.lengths) == 1:
        return _beside_another_sequence(kernel, case, violation, key, tensor_name)
    return f"{location} does not follow what other sequences hold: {_OWN_FAULT}"


def _beside_another_sequence(
    kernel: KernelUnderTest, case: Case, violation: Violation, key: TensorKey, tensor_name: str
) -> str:
    """What a wrong element of the only sequence depends on once there is another one, of equal length."""
    n, keys = case.lengths[0], case.key_lengths
    pair = case.replace(lengths=(n, max(n, 1)), key_lengths=keys and keys * 2)
    for j, layout in ((0, pair), (1, pair.replace(lengths=pair.lengths[::-1]))):
        try:
            in_pair = replace(violation, sequence=j)
            leaks = _leaking_sequences(kernel, kernel.sample(layout), layout, in_pair, key)
        except (KernelFault, Refusal):
            continue
        if leaks:
            return f"in a pack of {list(layout.lengths)}, {tensor_name} in sequence {j} contains {' and '.join(leaks)}"
    return f"{tensor_name} follows no sequence beside its own, either: {_OWN_FAULT}"


def _leaking_sequences(
    kernel: KernelUnderTest, sample: Sample, case: Case, violation: Violation, key: TensorKey
) -> list[str]:
    """The sequences whose values reach the wrong element, the slack among them."""
    before = kernel.run(sample)[key]
    index = _element_index(sample, violation)
    redrawn = kernel.sample(case.replace(seed=case.seed + 3000))
    sources = []
    for i, length in enumerate(case.lengths):
        if i == violation.sequence:
            continue
        after = kernel.run(sample.redraw_only(i, redrawn))[key]
        if not _is_equal(before[index], after[index]):
            sources.append(f"sequence {i}" if length else f"the state of sequence {i}")
    if case.slack and not _is_equal(before[index], kernel.run(sample.with_slack(0.5))[key][index]):
        sources.append("the slack")
    return sources


def _length_dependences(
    kernel: KernelUnderTest, sample: Sample, case: Case, violation: Violation, key: TensorKey
) -> list[str]:
    """The other sequences whose number of tokens, or of keys, moves the wrong element by more than roundings may."""
    redrawn = kernel.sample(case.replace(seed=case.seed + 3000))
    before = float(kernel.run(sample)[key][_element_index(sample, violation)])
    limit = 2 * float(kernel.budget(key, sample).total[_element_index(sample, violation)])
    if not isfinite(limit):
        return []
    dependences = []
    for keys in (False, True) if sample.key_lengths is not None else (False,):
        for i, n in enumerate(sample.key_lengths or () if keys else sample.lengths):
            resized_samples = (
                sample.resized(i, m, redrawn, keys=keys) for m in _other_lengths(n) if i != violation.sequence
            )
            if any(
                not _is_within(_element_in(kernel, resized, violation, key), before, limit)
                for resized in resized_samples
            ):
                dependences.append(f"the number of keys of sequence {i}" if keys else f"the length of sequence {i}")
    return dependences


def _other_lengths(n: int) -> list[int]:
    return [m for m in (n + 1, 2 * n + 5, n - 1, 0) if m >= 0 and m != n]


def _element_in(kernel: KernelUnderTest, sample: Sample, violation: Violation, key: TensorKey) -> float | None:
    """The element in another pack; None if the kernel fails or declines there."""
    try:
        return float(kernel.run(sample)[key][_element_index(sample, violation)])
    except (KernelFault, Refusal):
        return None


def _is_within(after: float | None, before: float, limit: float) -> bool:
    is_equal = after is None or after == before or (isnan(after) and isnan(before))
    return is_equal or (after is not None and abs(after - before) <= limit)


def _element_index(sample: Sample, violation: Violation) -> tuple[int, ...]:
    assert violation.tensor is not None
    offsets = sample.offsets_of(sample.axes[violation.tensor.name])
    row = violation.sequence if violation.position < 0 else offsets[violation.sequence] + violation.position
    return (row, *violation.index)


def _is_equal(a: Tensor, b: Tensor) -> bool:
    x, y = float(a), float(b)
    return x == y or (isnan(x) and isnan(y))
