"""The cause of a failure, as a key: failures of a kernel with the same key are one fault, reported once.

A fault of the values shows in many properties, and in gradients too. So the key is not the property: it says which
results are wrong in plain calls, whether they were written at all, and whether only 16-bit dtypes are wrong.
"""

from collections.abc import Collection, Sequence
from math import isfinite

from packproof.base.errors import KernelFault
from packproof.base.names import SLACK
from packproof.harness.check.diagnosis.slack import filled_case
from packproof.harness.report import refusal_key
from packproof.properties.calling import Refusal, TensorKey
from packproof.properties.cases import Case, Space
from packproof.properties.judgement import KernelUnderTest, judge_case
from packproof.properties.laws import COMBINED_NAMES, REFERENCE, Property, Violation, against_reference

# a plain call of another pack, or several, with which a property compares
_PLAIN_RUNS = ("alone", "permuted", "sum over the sequences", "before", "in pieces", *COMBINED_NAMES.values())
_NARROW = ("bfloat16", "float16")


def cause_key(
    kernel: KernelUnderTest,
    law: Property,
    case: Case,
    violation: Violation,
    *,
    spaces: Sequence[Space],
    unwritten: Collection[TensorKey] = (),
) -> str:
    """The key of the cause; "" for a fault, whose words tell the cause.

    case: the smallest case.
    spaces: of the dtypes of the check.
    unwritten: the tensors with rows that were never written.
    """
    if violation.text and not violation.fault:
        return refusal_key(violation.text.partition("\n")[0])
    if violation.text or violation.tensor is None:
        return ""
    results = "values" if violation.tensor.kind == "output" else "gradients"
    if any(key.kind == "output" for key in unwritten):
        return "unwritten values"  # their gradients are wrong, too
    if violation.tensor in unwritten:
        return "unwritten gradients"
    wrong_results = _wrong_results(kernel, case)
    plain_runs = _PLAIN_RUNS if kernel.takes_cuts else (*_PLAIN_RUNS, "over ranks")
    is_plain = violation.other in plain_runs and isfinite(violation.got) and isfinite(violation.wanted)
    if "values" in wrong_results or (results in wrong_results and results == "gradients"):
        key = "values" if "values" in wrong_results else "gradients"
    elif is_plain and violation.shows_error:
        key = results
    else:
        return law.name
    return f"{key} in 16 bits" if _is_of_16_bits(kernel, law, case, violation, spaces) else key


def slack_cause(kernel: KernelUnderTest, case: Case, violation: Violation, spaces: Sequence[Space]) -> str:
    """The key of the cause of a failure by slack: another one if a last sequence in place of the slack fails too."""
    filled = filled_case(case)
    if violation.text or not kernel.domain.allows(kernel.op, filled):
        return SLACK
    filled_violation = judge_case(kernel, REFERENCE, filled)[0]
    return SLACK if filled_violation is None else cause_key(kernel, REFERENCE, filled, filled_violation, spaces=spaces)


def _wrong_results(kernel: KernelUnderTest, case: Case) -> set[str]:
    """Which results of the plain call differ from the reference: "values", "gradients"."""
    try:
        violations = list(against_reference(kernel, kernel.sample(case)))
    except (KernelFault, Refusal):
        return set()
    return {"gradients" if v.tensor and v.tensor.is_gradient else "values" for v in violations}


def in_dtype(case: Case, space: Space) -> Case | None:
    """The same call in the dtype of a space; None where the kernel's domain lacks it."""
    if case.dtype != space.dtype:
        are_narrow = {case.dtype, space.dtype} <= {*_NARROW}  # else other inputs are in fp32, or in 16 bits
        case = case.replace(dtype=space.dtype, narrow=(), float32=case.float32 if are_narrow else ())
    fitted = space.fit(case)
    return fitted if fitted is not None and fitted.lengths == case.lengths else None


def _is_of_16_bits(
    kernel: KernelUnderTest, law: Property, case: Case, violation: Violation, spaces: Sequence[Space]
) -> bool:
    """Whether the same call in a wider dtype of the check keeps the law."""
    if case.dtype not in _NARROW:
        return False
    wider = (in_dtype(case, space) for space in spaces if space.dtype not in _NARROW)
    wide_case = next(filter(None, wider), None)
    return wide_case is not None and judge_case(kernel, law, wide_case, violation)[0] is None
