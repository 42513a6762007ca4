"""What packproof says of a fix: it speaks at the parent, and is silent at the fix."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from packproof.proof.backtest.commit_check import CommitCheck, FailedCell

_FIXED, _STILL_FAILING = 0, 1  # exit codes of `packproof replay`

Fate = Literal["detected", "another reason", "missed", "cannot be asked", "not run", "alarm", "same"]


@dataclass(frozen=True)
class FixOutcome:
    """One entry: its parent and its fix."""

    id: str
    fate: Fate
    """ "detected": a property fails at the parent that holds at the fix. Nothing but the fix differs, hence it is the
    cause. "another reason": all that fails at the parent fails at the fix, too. "missed": nothing fails at the parent.
    "cannot be asked": no op, convention or language of packproof's fits, or the commit could not be imported. "not
    run": this machine lacks the device. Of a refactoring, "alarm": a property fails at one commit that holds at the
    other; "same": none does."""
    reason: str = ""
    """Why it could not be asked or run."""
    parent: CommitCheck | None = None
    fix: CommitCheck | None = None
    mended: tuple[FailedCell, ...] = ()
    """A property that fails at both commits, but whose smallest case at the parent holds at the fix: the fix still
    has another fault. The first one is enough."""
    properties: tuple[str, ...] = ()
    """Those that were asked; () for all of the question's profile."""

    @property
    def speaking(self) -> tuple[FailedCell, ...]:
        """What failed at the parent and not at the fix, where it was judged, or not at its smallest case there."""
        if self.parent is None or self.fix is None:
            return ()
        return (*_failed_alone(self.parent, self.fix), *self.mended)

    @property
    def appearing(self) -> tuple[FailedCell, ...]:
        """What failed at the fix and not at the parent, where it was judged."""
        if self.parent is None or self.fix is None:
            return ()
        return _failed_alone(self.fix, self.parent)

    @property
    def at_fix(self) -> tuple[FailedCell, ...]:
        """What still fails at the fix: another fault, or a false alarm. Each has to be explained."""
        return self.fix.failed if self.fix else ()


def _failed_alone(trial: CommitCheck, other: CommitCheck) -> tuple[FailedCell, ...]:
    """Properties that hold at the other commit. One that fails there too, in other words, tells nothing of the fix."""
    failed_there = {cell.law for cell in other.failed}
    return tuple(cell for cell in trial.failed if cell.law not in failed_there and _was_judged(cell.law, other))


def _was_judged(law: str, trial: CommitCheck) -> bool:
    """Whether a property had a verdict in the time. Records of earlier runs have a number of those that held."""
    laws_unknown = len(trial.held) < trial.judged
    return laws_unknown or law in trial.held or any(cell.law == law for cell in trial.failed)


def compare_refactored(name: str, parent: CommitCheck, commit: CommitCheck) -> FixOutcome:
    """The outcome of the checks of a refactoring and of its parent. If nothing holds at either, nothing was asked."""
    outcome = compare_commits(name, parent, commit)
    if outcome.fate == "cannot be asked":
        return outcome
    if not parent.judged and not commit.judged:
        return replace(outcome, fate="cannot be asked", reason=f"nothing holds: {parent.failed[0].message}")
    return replace(outcome, fate="alarm" if outcome.speaking or outcome.appearing else "same")


def compare_commits(name: str, parent: CommitCheck, fix: CommitCheck) -> FixOutcome:
    """The outcome of the checks of both commits."""
    outcome = FixOutcome(name, "missed", "", parent, fix)
    for label, trial in (("parent", parent), ("fix", fix)):
        if not trial.was_asked:
            last_line = next((line for line in reversed(trial.text.splitlines()) if line.strip()), "no output")
            return replace(outcome, fate="cannot be asked", reason=f"at the {label}: {last_line.strip()[:300]}")
    if outcome.speaking:
        return replace(outcome, fate="detected")
    if not parent.failed:
        return outcome
    unjudged = dict.fromkeys(cell.law for cell in parent.failed if not _was_judged(cell.law, fix))
    reason = f"the fix had no verdict in the time: {', '.join(unjudged)}" if unjudged else ""
    return replace(outcome, fate="another reason", reason=reason)


Replay = Callable[[str, FailedCell], int]


def with_mended_cases(outcome: FixOutcome, replay: Replay) -> FixOutcome:
    """The same outcome; "detected" if a failing case of the parent holds at the fix, and fails at the parent again.

    replay: the exit code at a commit, for the case of a failure.
    """
    assert outcome.parent is not None
    assert outcome.fix is not None
    parent, fix = outcome.parent.commit, outcome.fix.commit
    for cell in outcome.parent.failed:
        if replay(fix, cell) == _FIXED and replay(parent, cell) == _STILL_FAILING:
            return replace(outcome, fate="detected", reason="", mended=(cell,))
    return outcome


def counts(outcomes: Sequence[FixOutcome]) -> dict[str, int]:
    """How many entries have each fate."""
    return {fate: sum(o.fate == fate for o in outcomes) for fate in get_args(Fate)}
