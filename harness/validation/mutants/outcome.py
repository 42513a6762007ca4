"""What became of a mutant, and what decides it."""

from dataclasses import dataclass

from packproof.harness.engine.evaluate import broken
from packproof.properties.call import Refused
from packproof.properties.case import Case
from packproof.properties.catalogue import PROPERTIES
from packproof.properties.kernel_under_test import KernelUnderTest

# what torch makes of an operator hangs on how it is registered, and sizes on a GPU: neither on what mutants change
DECIDING = tuple(name for name in PROPERTIES if name not in ("torch", "size"))


@dataclass(frozen=True)
class MutantOutcome:
    """by: the property that convicted it, or how it failed by itself (memory, raised, hung, crashed, malformed); "" if
    it survived. op, property, case: of the last check, "" where none executes the line. seconds: of a CPU; of a clock
    where it was compiled.
    """

    id: str
    by: str = ""
    op: str = ""
    property: str = ""
    case: str = ""
    seconds: float = 0.0


def convicted_by(subject: KernelUnderTest, name: str, case: Case) -> str:
    """As `MutantOutcome.by`, of a property at a case."""
    try:
        violation = broken(subject, name, case)
    except Refused:
        return ""
    return (violation.fault or name) if violation else ""
