"""A violation of a property: one incorrect element, its location and its error."""

from dataclasses import dataclass
from math import isfinite

from packproof.base.reductions import REDUCTIONS
from packproof.properties.calling.tensor_key import TensorKey

COMBINED_NAMES = {
    kind: f"{kind} of the sequences" for kind in REDUCTIONS
}  # what a reduction of a pack is compared with
NAN_IN_SLACK = "with NaN in the slack"  # the note of a pack whose slack rows hold NaN


@dataclass(frozen=True)
class Violation:
    """The worst element of one tensor, or a fault of the kernel.

    >>> from packproof.properties import TensorKey, Violation
    >>> Violation(TensorKey("y"), 1, 0, (2,), got=0.5, wanted=0.25, excess=12.0, term="accumulation").lines()
    ['sequence 1, token 0, element [2]: got 0.5, reference 0.25; 12 x the budget (accumulation)']
    """

    tensor: TensorKey | None = None
    """The tensor; None for a fault."""
    sequence: int = -1
    """The sequence of a token or state; -1 for slack and shared tensors."""
    position: int = -1
    """The position of a token in its sequence, or of a row in the slack; -1 for states and shared tensors."""
    index: tuple[int, ...] = ()
    """The index of the element, without the row of a token or state."""
    got: float = 0.0
    """The value under test."""
    wanted: float = 0.0
    """The value to agree with."""
    other: str = "reference"
    """The source of `wanted`, such as "reference" or "alone"."""
    excess: float | None = None
    """The error as a multiple of the budget; None for a comparison of bits."""
    term: str = ""
    """The dominant term of the budget at this element."""
    text: str = ""
    """A description, if there are no numbers."""
    note: str = ""
    """How the property had changed the pack."""
    fault: str = ""
    """The kind of fault, "" if there is none."""
    expected: float | None = None
    """The value of the reference, after a comparison of two runs of the kernel."""
    allowed: float = 0.0
    """The largest allowed distance of a run from `expected`."""
    slot: int = -1
    """The slot of a pool of states; -1 elsewhere."""
    rank: int = -1
    """The rank with the token; -1 elsewhere."""

    def lines(self) -> list[str]:
        """Lines for reports: location, values and error."""
        if self.text:
            return [*self.text.splitlines(), *([self.note] if self.note else [])]
        error_text = "bits differ" if self.excess is None else f"{number(self.excess)} x the budget ({self.term})"
        got_text, wanted_text, *expected = distinct_texts(
            self.got, self.wanted, *([] if self.expected is None else [self.expected])
        )
        values = f"got {got_text}, {self.other} {wanted_text}; {error_text}"
        reference_lines = [f"reference {text}: {self.side}" for text in expected]
        return [f"{self.location}: {values}", *reference_lines, *([self.note] if self.note else [])]

    @property
    def error(self) -> str:
        """The name of the exception raised by the call, "" for anything else."""
        parts = self.text.partition("\n")[0].split(": ") if self.fault == "raised" else ()
        return next((part for part in parts if part.isidentifier()), "")

    @property
    def in_slack(self) -> bool:
        """Whether it is of rows past the last sequence: the element is in one, or NaN in them changed it."""
        return self.note == NAN_IN_SLACK or (self.sequence < 0 <= self.position)

    def is_like(self, other: "Violation") -> bool:
        """Whether it breaks the law in the same way as a violation at a larger case: by the same fault, or in the same
        tensor. NaN is not like a finite number, and a fault of slack not like one of a sequence."""
        same_fault = (self.fault, self.error, self.tensor) == (other.fault, other.error, other.tensor)
        same_rows = other.in_slack or not self.in_slack
        return same_fault and same_rows and (isfinite(self.got) or not isfinite(other.got))

    @property
    def shows_error(self) -> bool:
        """Whether one of the two runs is incorrect, as far as the reference tells."""
        distances = [] if self.expected is None else [abs(x - self.expected) for x in (self.got, self.wanted)]
        return self.expected is None or any(not distance <= self.allowed for distance in distances)

    @property
    def side(self) -> str:
        """Says which of two runs is incorrect, by their distances from the reference."""
        assert self.expected is not None
        got_is_correct, wanted_is_correct = (abs(x - self.expected) <= self.allowed for x in (self.got, self.wanted))
        this_run = _RUN_NAMES.get(self.other, "this run")
        if got_is_correct and wanted_is_correct:
            return "both are within its budget"
        if not got_is_correct and not wanted_is_correct:
            return "both are incorrect"
        correct, incorrect = (this_run, self.other) if got_is_correct else (self.other, this_run)
        return f"{incorrect} is incorrect, {correct} is correct"

    @property
    def location(self) -> str:
        element = f", element {list(self.index)}" if self.index else ""
        if self.slot >= 0:
            return f"slot {self.slot}{element}"
        if self.sequence < 0:
            owner = "the pack" if self.tensor is not None and self.tensor.kind == "output" else "shared"
            return f"slack row {self.position}{element}" if self.position >= 0 else f"{owner}{element}"
        token = f", token {self.position}" if self.position >= 0 else ""
        return f"sequence {self.sequence}{token}{element}" + (f", on rank {self.rank}" if self.rank >= 0 else "")


# the name of the run under test, by the name of the run that it is compared with
_RUN_NAMES = {
    "alone": "packed",
    "sum over the sequences": "packed",
    **dict.fromkeys(COMBINED_NAMES.values(), "packed"),
    "before": "now",
    "permuted": "before",
    "in pieces": "in one run",
    "over ranks": "on one rank",
    "again": "the first run",
    "int32": "int64",
}


def number(x: float) -> str:
    """Four digits, as reports show them."""
    return f"{x:.4g}"


def distinct_texts(*numbers: float) -> list[str]:
    """The numbers with enough digits to tell the first two apart, four at least."""
    texts = ([f"{x:.{digits}g}" for x in numbers] for digits in range(4, 18))
    return next((candidate for candidate in texts if len(set(candidate[:2])) > 1), [number(x) for x in numbers])
