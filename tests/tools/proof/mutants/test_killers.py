"""The check that detected a mutant in the last run is known in the next one, and only sets the order."""

from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.proof.mutants.killers import Killer, killers_text, read_killers
from packproof.proof.mutants.mutant import all_mutants
from packproof.proof.mutants.outcome import MutantOutcome

FILE = Path(__file__).parents[4] / "data/killers.json"
CHECK = Killer("ssd", "reference", "lengths [1], float32")
A, B, C = "m:f:term:0", "m:f:term:12", "m:g:mask:1"


def detected(name: str, check: Killer) -> MutantOutcome:
    return MutantOutcome(name, killed_by="memory", op=check.op, property=check.property, case=check.case)


def test_a_run_replaces_its_own_mutants_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "killers.json"
    assert read_killers(file) == {}
    file.write_text(killers_text({}, [detected(name, CHECK) for name in (A, B, C)], (A, B, C)))
    assert read_killers(file) == dict.fromkeys((A, B, C), CHECK)
    other = Killer("rope", "packing", "x")
    file.write_text(killers_text(read_killers(file), [MutantOutcome(A), detected(B, other)], (A, B, C)))
    assert read_killers(file) == {B: other, C: CHECK}


def test_mutants_that_no_longer_exist_are_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "killers.json"
    file.write_text(killers_text({A: CHECK, B: CHECK}, [], (B, C)))
    assert read_killers(file) == {B: CHECK}


@pytest.mark.parametrize(
    "other",
    [
        "",
        "[]",
        '{"results": []}',
        '{"checks": [["ssd"]], "killers": {}}',
        '{"checks": [], "killers": {"f": {"o": [0]}}}',
    ],
)
def test_another_file_is_answered_in_one_line(tmp_path: Path, other: str) -> None:
    (tmp_path / "other.json").write_text(other)
    with pytest.raises(UsageError, match=r"json: damaged, .* expected a file that `packproof mutate --killers` wrote"):
        read_killers(tmp_path / "other.json")


def test_the_kept_ones_are_of_mutants_that_exist() -> None:
    known, ids = read_killers(FILE), {m.id for m in all_mutants()}
    assert len(known.keys() & ids) > 0.5 * len(ids)
