"""The examples in public docstrings hold, and every public name has one."""

import pytest

import packproof
from packproof import layers, packs, parallel, refs
from tests.examples_of import public, without_one, wrong_ones

NAMES = public(refs, layers, packs, parallel, packproof)
WITHOUT: set[str] = set()  # no example yet


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("name", NAMES)
def test_examples_hold(name: str) -> None:
    assert list(wrong_ones(name, NAMES[name])) == []


def test_every_public_name_has_an_example() -> None:
    """And what is listed as without one has none."""
    assert {missing for name, value in NAMES.items() for missing in without_one(name, value)} == WITHOUT


def test_a_wrong_example_and_a_missing_one_are_seen() -> None:
    def one() -> int:
        """One.

        >>> 1 + 1
        3
        """
        return 1

    def two() -> int:
        """Two."""
        return 2

    [told] = wrong_ones("packproof.one", one)
    assert "Expected:\n    3\nGot:\n    2\n" in told
    assert (without_one("packproof.one", one), without_one("packproof.two", two)) == ([], ["packproof.two"])
