"""The outcome of a mutant, and the properties that decide it."""

from dataclasses import dataclass

from packproof.harness.engine.evaluate import broken
from packproof.properties.call import Refused
from packproof.properties.case import Case
from packproof.properties.catalogue import PROPERTIES
from packproof.properties.kernel_under_test import KernelUnderTest

# torch depends on how an operator is registered, size on a GPU: neither on what mutants change
DECIDING = tuple(name for name in PROPERTIES if name not in ("torch", "size"))


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


def detected_by(subject: KernelUnderTest, name: str, case: Case) -> str:
    """`MutantOutcome.by` for a property at a case."""
    try:
        violation = broken(subject, name, case)
    except Refused:
        return ""
    return (violation.fault or name) if violation else ""
