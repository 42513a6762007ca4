"""Results that outlast the run: nothing is lost, and nothing graded twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.grading.many.listing import GradeEntry, fixed_entries, read_list
from packproof.grading.many.results import Results
from tests.tools.grading.many.samples import write_samples

FILE = "results.jsonl"


@pytest.fixture
def entries(working_folder: Path) -> Mapping[str, GradeEntry]:
    write_samples(working_folder, 4)
    return {entry.name: entry for entry in fixed_entries(read_list("list.jsonl"), None, None)}


def row_of(entry: GradeEntry, verdict: str = "failed", secret: str = "s") -> dict[str, Any]:
    grade = {"verdict": verdict, "seed": entry.submission.seed(secret, entry.terms.digest)}
    return {"name": entry.name, "secret": None, "grade": grade}


def write(*rows: dict[str, Any], end: str = "") -> None:
    Path(FILE).write_text("".join(json.dumps(row) + "\n" for row in rows) + end)


def resumed(entries: Mapping[str, GradeEntry]) -> set[str]:
    results = Results(FILE, resume=True)
    names = results.keep_grades(entries, "s")
    results.close()
    return names


def names_in_file() -> list[str]:
    return [json.loads(line)["name"] for line in Path(FILE).read_text().splitlines()]


def test_each_row_is_whole_in_the_file_at_once(entries: Mapping[str, GradeEntry]) -> None:
    results = Results(FILE, resume=False)
    for count, entry in enumerate(entries.values(), 1):
        results.add(row_of(entry))
        assert len(names_in_file()) == count
    results.close()
    assert resumed(entries) == entries.keys()


def test_the_torn_line_of_a_killed_run_is_cut_off(entries: Mapping[str, GradeEntry]) -> None:
    first, second, *_ = entries.values()
    write(row_of(first), end=json.dumps(row_of(second))[:-9])
    assert resumed(entries) == {first.name}
    assert names_in_file() == [first.name]


def test_what_was_not_judged_or_has_changed_is_graded_again(entries: Mapping[str, GradeEntry]) -> None:
    passed, unjudged, other_secret, lost = entries.values()
    elsewhere = {"name": "of another list", "secret": None, "error": "lost"}
    write(
        row_of(passed, "passed"),
        row_of(unjudged, "inconclusive"),
        row_of(other_secret, secret="t"),
        {"name": lost.name, "secret": None, "error": "its host is gone"},
        elsewhere,
    )
    assert resumed(entries) == {passed.name}
    assert names_in_file() == [passed.name, "of another list"]


def test_another_file_of_the_same_name_is_graded_again(entries: Mapping[str, GradeEntry]) -> None:
    write(*map(row_of, entries.values()))
    Path("submissions/0002-uncallable.py").write_text("# another one")
    changed = {entry.name: entry for entry in fixed_entries(read_list("list.jsonl"), None, None)}
    assert resumed(changed) == entries.keys() - {"0002-uncallable"}


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("text", "resume", "message"),
    [
        ("{}\n", False, f"--results: {FILE} exists; --resume continues it"),
        ("{}\n", True, "damaged, line 1: KeyError('name')"),
        ("[1]\n{}\n", True, "damaged, line 1: "),
        ('{"name": "a", "secret": null, "grade": 1}\n', True, "damaged, line 1: "),
    ],
)
def test_no_file_is_overwritten(text: str, resume: bool, message: str) -> None:
    Path(FILE).write_text(text)
    with pytest.raises(UsageError) as error:
        Results(FILE, resume=resume)
    assert message in str(error.value)
    assert Path(FILE).read_text() == text


def test_two_runs_do_not_write_the_same_file(entries: Mapping[str, GradeEntry]) -> None:
    write(*map(row_of, entries.values()))
    write(row_of(next(iter(entries.values())), "inconclusive"))
    results = Results(FILE, resume=True)
    for _ in range(2):  # it is another file, once a row is dropped
        with pytest.raises(UsageError, match="is being written by another run"):
            Results(FILE, resume=True)
        results.keep_grades(entries, "s")
    results.close()
    assert resumed(entries) == set()
