"""The outcome of a mutant, and the properties that decide it."""

from dataclasses import dataclass

from packproof.harness.engine.violations import broken
from packproof.properties.call import Refused
from packproof.properties.cases.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property

DECIDING = tuple(law for law in PROPERTIES.values() if law.decides_mutants)


@dataclass(frozen=True)
class MutantOutcome:
    """by: the property that killed it, or its own fault (memory, raised, hung, crashed, malformed); "" if it survived.
    op, property, case: of the last check, "" where none executes the line. seconds: CPU time; wall time where it was
    compiled.
    """

    id: str
    by: str = ""
    op: str = ""
    property: str = ""
    case: str = ""
    seconds: float = 0.0


def detected_by(subject: KernelUnderTest, law: Property, case: Case) -> str:
    """`MutantOutcome.by` for a property at a case."""
    try:
        violation = broken(subject, law, case)
    except Refused:
        return ""
    return (violation.fault or law.name) if violation else ""
