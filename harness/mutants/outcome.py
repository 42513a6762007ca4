"""What became of a mutant."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
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
