"""A property at one case: the first violation, and the refusal that kept the case from being judged."""

from packproof.base.errors import KernelFault
from packproof.properties.call import Refusal, VacuousBound
from packproof.properties.cases.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.violation import Violation


def first_violation(kernel: KernelUnderTest, law: Property, case: Case) -> Violation | None:
    """The first violation of a property at a case, or None. A fault of the kernel violates every property."""
    try:
        return next(law.check(kernel, case), None)
    except KernelFault as fault:
        return Violation(text=str(fault), note=fault.note, fault=fault.kind)


def judge_case(kernel: KernelUnderTest, law: Property, case: Case) -> tuple[Violation | None, Refusal | None]:
    """The first violation of a property at a case, and the refusal that kept it from being judged.

    If the kernel refuses to differentiate, its values are judged. If a derived bound is vacuous for wild data, plain
    data of the same layout are judged.
    """
    try:
        return first_violation(kernel, law, case), None
    except VacuousBound as vacuous:
        return (None, vacuous) if case.regime == "normal" else judge_case(kernel, law, case.replace(regime="normal"))
    except Refusal as refused:
        if not refused.backward:
            return None, refused
        backward_refusal = refused
    try:
        return first_violation(kernel.values_only, law, case), backward_refusal
    except Refusal as refused:
        return None, refused
