"""What still fails at a fix of the backtest is explained by a script that needs no packproof."""

import re
from pathlib import Path

import pytest

from packproof.proof.backtest.entries import Candidate, cases
from packproof.proof.backtest.run import read_outcomes

ROOT = Path(__file__).parents[4]
SCRIPTS = sorted(ROOT.glob("docs/backtest/*.py"))
NOT_RUN = ("has not run there yet", "the script has not run yet")


def reading(case: Candidate) -> str:
    return case.checkout.readings.get(case.entry.id, "") if case.checkout else ""


def linked(text: str) -> list[Path]:
    return [ROOT / "docs" / path for path in re.findall(r"\]\(((?:backtest|peers)/[^)]+)\)", text)]


def is_shown(text: str) -> bool:
    return bool(linked(text)) and not any(words in text for words in NOT_RUN)


def test_each_report_at_a_fix_has_a_script() -> None:
    """One that has shown the fault, many of them on a GPU: there is none here."""
    outcomes = read_outcomes(ROOT / "data/backtest.jsonl")
    failing = [case for case in cases().values() if case.entry.id in outcomes and outcomes[case.entry.id].at_fix]
    assert failing
    assert {case.entry.id for case in failing if not is_shown(reading(case))} == set()


def test_the_scripts_of_readings_are_there() -> None:
    paths = {path for case in cases().values() for path in linked(reading(case))}
    assert [path for path in paths if not path.exists()] == []
    assert {*SCRIPTS} <= paths


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_needs_no_packproof_and_names_its_commit(script: Path) -> None:
    text = script.read_text()
    assert "packproof" not in text
    commits = {case.entry.fix[:8] for case in cases().values()}
    assert commits & set(re.findall(r"\b[0-9a-f]{8}\b", text.split('"""')[1]))
