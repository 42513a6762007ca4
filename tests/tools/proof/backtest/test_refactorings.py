"""Refactorings: what is said of a commit that mends nothing, and that each recorded one can be asked about."""

from dataclasses import replace

import pytest

from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.proof.backtest.commit_check import CommitCheck, FailedCell
from packproof.proof.backtest.entries import Candidate, UpstreamFix, cases
from packproof.proof.backtest.outcome import FixOutcome, compare_commits, compare_refactored
from packproof.proof.backtest.page import as_markdown, line, summary
from packproof.proof.backtest.refactorings import refactorings, selected_refactorings

FAILED = FailedCell("packing", "float32", "y", (1, 1), "y in sequence 1 contains sequence 0")
OTHER = replace(FAILED, law="isolation", tensor="x")
CASE = Candidate(
    "someone/toy",
    UpstreamFix("toy-22222222", "2" * 40, "1" * 40, "", "", "out", "speed: a | fewer", "packs are fuller"),
    None,
    None,
    is_refactoring=True,
)


def trial(*failed: FailedCell, judged_cells: int = 3) -> CommitCheck:
    return CommitCheck("0" * 40, 1 if failed else 0, 1.5, failed, judged_cells, "")


@pytest.mark.parametrize(
    ("parent", "commit", "fate", "said"),
    [
        (trial(), trial(), "same", ""),
        (trial(FAILED), trial(replace(FAILED, lengths=(2,))), "same", "at both: packing y"),
        (trial(FAILED), trial(), "alarm", "only before: packing y"),
        (trial(), trial(FAILED), "alarm", "only after: packing y"),
        (trial(FAILED), trial(OTHER), "alarm", "only before: packing y; only after: isolation x"),
        (trial(judged_cells=0), trial(), "cannot be asked", ""),
        (trial(FAILED, judged_cells=0), trial(FAILED, judged_cells=0), "cannot be asked", FAILED.message),
    ],
)
def test_a_difference_in_either_direction_is_an_alarm(
    parent: CommitCheck, commit: CommitCheck, fate: str, said: str
) -> None:
    outcome = compare_refactored("toy-22222222", parent, commit)
    assert outcome.fate == fate
    assert said in line(outcome)


def test_what_one_side_had_no_time_for_is_no_difference() -> None:
    judged = replace(trial(judged_cells=1), held=("reference",))
    also_packing = replace(trial(judged_cells=2), held=("reference", "packing"))
    assert compare_refactored("a", trial(FAILED), judged).fate == "same"
    assert compare_refactored("a", judged, trial(FAILED)).fate == "same"
    assert compare_refactored("a", trial(FAILED), also_packing).fate == "alarm"
    assert compare_commits("a", trial(FAILED), judged).fate == "another reason"
    assert "no verdict in the time: packing" in compare_commits("a", trial(FAILED), judged).reason
    assert compare_commits("a", trial(FAILED), also_packing).fate == "detected"
    other_words = replace(judged, failed=(replace(FAILED, tensor="x"),))
    assert compare_commits("a", trial(FAILED), other_words).fate == "another reason"


def test_the_page_lists_those_that_were_run() -> None:
    quiet, alarm = compare_refactored("a", trial(), trial()), compare_refactored("b", trial(), trial(FAILED))
    selected = [replace(CASE, entry=replace(CASE.entry, id=name)) for name in ("a", "b", "c")]
    outcomes: dict[str, FixOutcome] = {"a": quiet, "b": alarm}
    assert summary([], outcomes, selected) == "refactorings: 1 of 2 the same"
    page = as_markdown([], outcomes, selected)
    assert "## Refactorings: 2" in page
    assert "speed: a \\| fewer | alarm | only after: packing y. packs are fuller |" in page
    assert "Refactorings" not in as_markdown([], {}, selected)


def test_each_recorded_refactoring_has_a_question_and_is_no_fix() -> None:
    recorded = refactorings()
    fixes = {case.entry.fix for case in cases().values() if case.in_scope}
    assert len(recorded) >= 15
    assert len({case.project for case in recorded.values()}) >= 4
    for name, case in recorded.items():
        assert case.question, name
        assert case.entry.reason, name
        assert case.entry.fix not in fixes, name


def test_unknown_names_and_shards_are_refused() -> None:
    with pytest.raises(UsageError, match="no refactoring is called 'toy-1'"):
        selected_refactorings(("toy-1",), "1/1")
    first, second = (selected_refactorings((), shard) for shard in ("1/2", "2/2"))
    assert len(first) + len(second) == len(refactorings())


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(refactorings()))
    assert main.run(["backtest", "--refactorings", "--list", name]) == 0
    assert capsys.readouterr().out.startswith(name)
