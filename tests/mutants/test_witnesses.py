"""What convicted a mutant the last time is known the next time, and no more than an order."""

from pathlib import Path

import pytest

from packproof.harness.validation.mutants.killers import Witness, read, text
from packproof.harness.validation.mutants.mutant import all_mutants
from packproof.harness.validation.mutants.outcome import MutantOutcome
from packproof.refs.errors import UsageError

ROOT = Path(__file__).parents[2]
CHECK = Witness("ssd", "reference", "lengths [1], float32")


def test_a_run_replaces_what_it_has_judged_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "witnesses.json"
    assert read(file) == {}
    killed = [MutantOutcome(name, by="memory", op=CHECK.op, property=CHECK.property, case=CHECK.case) for name in "abc"]
    file.write_text(text({}, killed))
    assert read(file) == dict.fromkeys("abc", CHECK)
    file.write_text(
        text(read(file), [MutantOutcome("a"), MutantOutcome("b", by="hung", op="rope", property="packing", case="x")])
    )
    assert read(file) == {"b": Witness("rope", "packing", "x"), "c": CHECK}


def test_another_file_is_answered_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"results": []}')
    with pytest.raises(UsageError, match="is no file of witnesses"):
        read(tmp_path / "other.json")


def test_the_kept_ones_are_of_mutants_that_there_are() -> None:
    known = read(ROOT / "docs/witnesses.json")
    there = {m.id for m in all_mutants()}
    assert len(known.keys() & there) > 0.5 * len(there)
