"""Runs the backtest, so that a stopped run goes on where it ended, and shards of several machines can be merged."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from packproof.base.errors import UsageError
from packproof.base.records import from_row, to_row
from packproof.proof.backtest.commit_check import Asked, CommitCheck, check_commit, replay_case
from packproof.proof.backtest.commits import Clones
from packproof.proof.backtest.entries import Candidate
from packproof.proof.backtest.outcome import FixOutcome, compare_commits, compare_refactored, with_mended_cases

Compare = Callable[[str, CommitCheck, CommitCheck], FixOutcome]


def run_cases(
    cases: Iterable[Candidate], clones: Clones, device: str, *, seconds: float, properties: tuple[str, ...] = ()
) -> Iterator[FixOutcome]:
    """The outcome of each case.

    device: cpu or cuda; questions that need a GPU are not run on cpu.
    seconds: for each of an entry's two checks.
    properties: those that are asked of kernels; () for all of a question's profile.
    """
    for case in cases:
        yield run_case(case, clones, device, seconds=seconds, properties=properties)


def run_case(
    case: Candidate, clones: Clones, device: str, *, seconds: float, properties: tuple[str, ...] = ()
) -> FixOutcome:
    """Check the parent and the fix of one entry, or the parent and the commit of a refactoring."""
    entry, question, checkout = case.entry, case.question, case.checkout
    if question is None or checkout is None:
        return FixOutcome(entry.id, "cannot be asked", "no question was written for it")
    if question.later:
        return FixOutcome(entry.id, "cannot be asked", question.later)
    if question.device == "cuda" and device == "cpu":
        return FixOutcome(entry.id, "not run", "it needs a GPU")
    commits = entry.parent, entry.fix
    asked = Asked(clones.git_directory(case.project), checkout, question, device, seconds, properties)
    if case.is_refactoring:
        outcome = _compared(entry.id, asked, commits, compare_refactored)
    else:
        outcome = _first_everywhere(entry.id, asked, commits)
    outcome = replace(outcome, properties=properties)
    packages = ", ".join(question.packages or checkout.packages)
    if outcome.fate == "cannot be asked" and packages:
        return replace(outcome, reason=f"{outcome.reason}; it needs {packages}")
    return outcome


def _first_everywhere(name: str, asked: Asked, commits: tuple[str, str]) -> FixOutcome:
    """The outcome without the question's domain; with it, where faults that both commits have hide all others."""
    domain = asked.question.domain
    everywhere = replace(asked, question=replace(asked.question, domain=()))
    outcome = _compared(name, everywhere, commits, compare_commits)
    if outcome.fate != "another reason" or not domain:
        return outcome
    inside = _compared(name, asked, commits, compare_commits)
    condition = "; ".join(domain)
    return replace(inside, reason=" ".join([f"asked again for {condition}: both commits fail outside.", inside.reason]))


def _compared(name: str, asked: Asked, commits: tuple[str, str], compare: Compare) -> FixOutcome:
    """The outcome of the checks of two commits, and of the first one's failing cases at the second."""
    with TemporaryDirectory(prefix="packproof-cases-") as folder:
        folders = [Path(folder) / part for part in ("before", "after")]
        before, after = (check_commit(asked, commit, files) for commit, files in zip(commits, folders, strict=True))
        outcome = compare(name, before, after)
        if outcome.fate == "another reason":
            return with_mended_cases(outcome, partial(replay_case, asked, folders[0]))
        return outcome


def read_outcomes(file: Path) -> dict[str, FixOutcome]:
    """The outcomes in a file of earlier runs, by id; {} if there is none. A line cut off at its end is left out."""
    if not file.exists():
        return {}
    outcomes = {}
    for line in file.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # the run was stopped while it wrote this line
        outcome = from_row(FixOutcome, row)
        outcomes[outcome.id] = outcome
    return outcomes


def append_outcome(file: Path, outcome: FixOutcome) -> None:
    """Add an outcome to the file, on a line of its own also where an earlier run was stopped inside one."""
    was_cut_off = file.exists() and file.read_bytes()[-1:] not in (b"", b"\n")
    with file.open("a") as lines:
        lines.write("\n" * was_cut_off + json.dumps(to_row(outcome)) + "\n")


def merged(files: Iterable[Path]) -> dict[str, FixOutcome]:
    """The outcomes of several runs; of an entry that several have, one that was run. Raises UsageError for no file."""
    together: dict[str, FixOutcome] = {}
    for file in files:
        if not file.exists():
            raise UsageError(f"{file}: there is no such file; packproof backtest --results writes one")
        for name, outcome in read_outcomes(file).items():
            if name not in together or together[name].fate == "not run":
                together[name] = outcome
    return together
