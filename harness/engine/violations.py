"""A property at one case: the first violation, and the refusal that kept the case from being judged."""

from packproof.properties.call import BoundVacuous, KernelFault, Refused
from packproof.properties.cases.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.violation import Violation


def broken(kernel: KernelUnderTest, law: Property, case: Case) -> Violation | None:
    """The first violation of a property at a case, or None. A fault of the kernel violates every property."""
    try:
        return next(law.check(kernel, case), None)
    except KernelFault as fault:
        return Violation(text=str(fault), note=fault.note, fault=fault.kind)


def evaluated(kernel: KernelUnderTest, law: Property, case: Case) -> tuple[Violation | None, Refused | None]:
    """The first violation of a property at a case, and the refusal that kept it from being judged.

    If the kernel refuses to differentiate, its values are judged. If a derived bound is vacuous for wild data, plain
    data of the same layout are judged.
    """
    try:
        return broken(kernel, law, case), None
    except BoundVacuous as vacuous:
        return (None, vacuous) if case.regime == "normal" else evaluated(kernel, law, case.replace(regime="normal"))
    except Refused as refused:
        if not refused.backward:
            return None, refused
        stopped = refused
    try:
        return broken(kernel.values_only, law, case), stopped
    except Refused as refused:
        return None, refused
