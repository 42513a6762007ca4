"""Every explanation is about a mutant that exists: where the code changes, it has to be found again."""

from packproof.proof.mutants.equivalents import claim_keys, entries, find_explanations
from packproof.proof.mutants.mutant import all_mutants


def test_every_explanation_has_its_mutant() -> None:
    there = {claim for of_one in claim_keys().values() for claim in of_one}
    claimed = [(entry["function"], change) for entry in entries() for change in entry["changes"]]
    assert [c for c in claimed if c not in there] == []
    assert len(set(claimed)) == len(claimed)


def test_an_explanation_has_a_reason_and_no_unknown_field() -> None:
    for entry in entries():
        assert {"function", "changes", "reason"} <= set(entry) <= {"function", "changes", "reason", "beyond"}
        assert entry["reason"]


def test_explanations_are_found_by_what_they_change() -> None:
    mutants = all_mutants()
    assert len(find_explanations(mutants)) >= sum(len(entry["changes"]) for entry in entries())
