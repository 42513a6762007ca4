"""The outcome of a mutant, and the properties for deciding it."""

from dataclasses import dataclass

from packproof.properties.calling import Refusal
from packproof.properties.cases import Case
from packproof.properties.judgement import KernelUnderTest, first_violation
from packproof.properties.laws import PROPERTIES, Property

DECIDING = tuple(law for law in PROPERTIES.values() if law.decides_mutants)


@dataclass(frozen=True)
class MutantOutcome:
    """The outcome of one mutant."""

    id: str
    killed_by: str = ""
    """The property that killed it, or its fault (memory, raised, hung, crashed, malformed); "" if it survived."""
    op: str = ""
    """The op of the last check, "" if no check executes the changed line."""
    property: str = ""
    """The property of the last check."""
    case: str = ""
    """The case of the last check, as text."""
    seconds: float = 0.0
    """CPU time of an interpreted mutant, wall-clock time of a compiled one."""


def detected_by(subject: KernelUnderTest, law: Property, case: Case) -> str:
    """`MutantOutcome.killed_by` for a property at a case."""
    try:
        violation = first_violation(subject, law, case)
    except Refusal:
        return ""
    return (violation.fault or law.name) if violation else ""
