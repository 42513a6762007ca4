"""Refactorings of the backtest: commits that change kernels or packers of public projects, and mend no fault.

By reading, each is correct before and after, so packproof must say the same of both commits. A property that fails at
one and holds at the other is an alarm, to be explained. They are in `refactorings/`, with how each is asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packproof.base.names import require_known
from packproof.base.records import read_record
from packproof.proof.backtest.entries import Candidate, Checkout, UpstreamFix, shard_of

_FOLDER = Path(__file__).parent / "refactorings"


@dataclass(frozen=True)
class Refactoring:
    """One commit."""

    id: str
    """The project's short name and the commit's first digits."""
    commit: str
    """40 digits."""
    parent: str
    """The commit before it."""
    change: str
    """What it changes: another algorithm, fewer kernels, a feature beside the call that is asked about."""
    explanation: str = ""
    """Why the two sides differ, where they do."""


@dataclass(frozen=True)
class ProjectRefactorings:
    """Those of one project."""

    checkout: Checkout
    """It has a question for each of them, by its id."""
    refactorings: tuple[Refactoring, ...]


def refactorings() -> dict[str, Candidate]:
    """All of them by id, as cases whose entry mends nothing."""
    return {case.entry.id: case for file in sorted(_FOLDER.glob("*.json")) for case in _cases(file)}


def selected_refactorings(ids: tuple[str, ...], shard: str) -> list[Candidate]:
    """Those with these ids, all if there are none; of these the ith of n parts.

    Raises UsageError for an unknown id and a shard that is not i/n.
    """
    all_cases = refactorings()
    for name in ids:
        require_known("refactoring", name, all_cases, "packproof backtest --refactorings --list")
    return shard_of([case for name, case in all_cases.items() if not ids or name in ids], shard)


def _cases(file: Path) -> Iterator[Candidate]:
    project = read_record(ProjectRefactorings, file, "the backtest's refactorings", "a reader of the project's history")
    checkout = project.checkout
    for change in project.refactorings:
        entry = UpstreamFix(change.id, change.commit, change.parent, "", "", "out", change.change, change.explanation)
        yield Candidate(checkout.project, entry, checkout, checkout.questions.get(change.id), is_refactoring=True)
