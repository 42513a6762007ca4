"""The terms of a judgement as data: how much of a kernel is judged, how strictly, and who said so.

The caller fixes terms, by options or by a contract. A kernel's own terms are declared beyond those: less is judged, or
more is allowed, than the caller asks for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Subject = Literal[
    "contract", "op", "inputs", "options", "domain", "slack", "gradients", "dtypes", "promises", "properties"
]
Source = Literal["caller", "contract", "kernel"]


@dataclass(frozen=True)
class Term:
    """One term.

    >>> from packproof.properties.contracts import Term
    >>> Term("slack", "no slack", "kernel", "rows past the last sequence").conflict
    'slack: the kernel declares no slack, the contract has rows past the last sequence'
    """

    subject: Subject
    """Its subject."""
    text: str
    """The term in a few words, such as "d == 1" or "no gradients"."""
    source: Source
    """Who set it."""
    against: str = ""
    """Of a kernel's own term: the other side, its caller's."""

    @property
    def conflict(self) -> str:
        """Both sides of a kernel's own term, where its caller is a contract."""
        verb = "takes" if self.subject == "inputs" else "declares"
        return f"{self.subject}: the kernel {verb} {self.text}, the contract has {self.against}"


def terms_text(terms: Iterable[Term]) -> str:
    """Terms in one phrase: "d == 1, w == 1; no gradients"."""
    by_subject: dict[str, list[str]] = {}
    for term in terms:
        by_subject.setdefault(term.subject, []).append(term.text)
    return "; ".join(_joined(list(dict.fromkeys(texts))) for texts in by_subject.values())


def _joined(texts: list[str]) -> str:
    """Texts with commas; a repeated "no" is said once."""
    has_no = all(text.startswith("no ") for text in texts)
    return ", ".join([texts[0], *(text.removeprefix("no ") if has_no else text for text in texts[1:])])
