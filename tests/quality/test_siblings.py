"""Pairs of an incorrect kernel and its correct version, which differ in one thing: what callers do, and tests do not.

`packproof check` fails the one, with words that name the cause, and passes the other. tests/siblings/pairs.json lists
them; those that follow a report are entries of the museum. `python -m packproof.proof.pairs` runs all of them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import packproof
from packproof.harness.report.failed import CheckFailed
from packproof.museum import entries
from packproof.proof.pairs import Pair, PairRun, read_pairs
from packproof.properties.declarations.promises import Promises

FOLDER = Path(__file__).parents[1] / "siblings"
SIBLINGS: Mapping[str, Pair] = {pair.name: pair for pair in read_pairs(FOLDER / "pairs.json")}
SAMPLE = ("slots",)

pytestmark = pytest.mark.usefixtures("working_folder")


def marked(names: Mapping[str, Any]) -> list[Any]:
    """A sample here, for time; the others are a proof."""
    return [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.proof) for name in names]


def check(pair: Pair, target: str, profile: str, **options: Any) -> None:
    place = os.path.normpath(FOLDER / target) if ".py:" in target else target
    terms: dict[str, Any] = {"op": pair.op, "promises": Promises(**pair.promises), "profile": profile, "device": "cpu"}
    packproof.check(place, **terms, **options)


@pytest.mark.parametrize("name", marked(SIBLINGS))
def test_the_incorrect_kernel_fails_and_the_report_names_the_cause(name: str) -> None:
    pair = SIBLINGS[name]
    options: dict[str, Any] = {"dtypes": ["fp32"]} if name in SAMPLE else {}  # for time
    with pytest.raises(CheckFailed) as failed:
        check(pair, pair.incorrect, pair.profile, **options)
    assert pair.says in str(failed.value)


@pytest.mark.proof
@pytest.mark.parametrize("profile", ["quick", "standard"])
@pytest.mark.parametrize("correct", dict.fromkeys(pair.correct for pair in SIBLINGS.values()))
def test_the_correct_kernel_passes(correct: str, profile: str) -> None:
    check(next(pair for pair in SIBLINGS.values() if pair.correct == correct), correct, profile)


def test_pairs_of_the_museum_are_its_entries() -> None:
    assert all(pair.says for pair in SIBLINGS.values()), "without words, any failure names the cause"
    of_museum = [pair for pair in SIBLINGS.values() if pair.entry]
    assert len(of_museum) > 30
    for pair in of_museum:
        bug = entries()[pair.entry]
        assert (bug.op, bug.kernel, dict(bug.promises)) == (pair.op, pair.incorrect, dict(pair.promises))


def test_a_correct_kernel_that_fails_or_an_incorrect_one_that_passes_is_not_expected() -> None:
    run = PairRun("pair", "keys", "kernels.py:f", is_correct=False, profile="quick", exit_code=1, names_cause=True,
              seconds=1.0, report="")  # fmt: skip
    expected = {
        (correct, code): code == (0 if correct else 1) for correct in (True, False) for code in (0, 1, 2, 4, -1)
    }
    for (correct, code), want in expected.items():
        assert PairRun(**{**vars(run), "is_correct": correct, "exit_code": code}).is_expected == want
    assert not PairRun(**{**vars(run), "names_cause": False}).is_expected
