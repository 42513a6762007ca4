"""Every explanation of a survivor is about a mutant that exists: where the code changes, it has to be found again."""

from packproof.proof.mutants.equivalents import claim_keys_of, entries
from tests.kernels.mutants.mutant import EQUIVALENTS, all_mutants, explanations_of


def test_every_explanation_has_its_mutant() -> None:
    names = {name for names in claim_keys_of(all_mutants()).values() for name in names}
    explained = [(entry["function"], change) for entry in entries(EQUIVALENTS) for change in entry["changes"]]
    assert [name for name in explained if name not in names] == []
    assert len(set(explained)) == len(explained)
    assert len(explanations_of(all_mutants())) >= len(explained)


def test_an_explanation_has_a_reason_and_no_unknown_field() -> None:
    for entry in entries(EQUIVALENTS):
        assert {"function", "changes", "reason"} <= set(entry) <= {"function", "changes", "reason", "beyond"}
        assert entry["reason"]
