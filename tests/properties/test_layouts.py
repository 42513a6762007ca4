"""The golden layouts reach every boundary class, and so does the search."""

import pytest

from packproof.properties.cases.layouts import BOUNDARY_CLASSES, boundary_classes, golden_layouts
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import CAUSAL_CONV1D, OPS


@pytest.mark.parametrize(("chunk", "width"), [(16, 4), (64, 4), (8, 3), (256, 4)])
def test_golden_layouts_reach_every_class(chunk: int, width: int) -> None:
    reached = frozenset[str]().union(
        *(boundary_classes(lengths, chunk, width) for lengths in golden_layouts(chunk, width))
    )
    assert set(BOUNDARY_CLASSES) - reached == set()


@pytest.mark.proof
def test_random_search_reaches_nearly_every_class() -> None:
    space = Space(CAUSAL_CONV1D, "float32", Promises())
    drawn = random_cases(space, 200, seed=0)
    reached = frozenset[str]().union(*(boundary_classes(c.lengths, 16, space.width(dict(c.sizes))) for c in drawn))
    assert len(reached) >= 26, set(BOUNDARY_CLASSES) - reached


def test_the_same_seed_draws_the_same_cases() -> None:
    space = Space(CAUSAL_CONV1D, "float32", Promises())
    assert random_cases(space, 20, seed=3) == random_cases(space, 20, seed=3)
    assert random_cases(space, 20, seed=3) != random_cases(space, 20, seed=4)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((1,), {"length 1", "total < C", "one sequence"}),
        ((0, 0, 5), {"length 0", "empty first", "empty inside", "two empty in a row", "total < C"}),
        ((15, 1), {"length 1", "one token in a last row", "end one before the grid", "total kC", "length kC-1"}),
        ((16, 16), {"length kC", "start on the grid", "total kC"}),
        ((5, 40), {"crosses a whole chunk from inside one"}),
    ],
)
def test_classes_by_name(lengths: tuple[int, ...], expected: set[str]) -> None:
    assert expected <= boundary_classes(lengths, 16, 4)


@pytest.mark.parametrize("name", ["causal_conv1d", "ssd", "rope_hadamard", "kda"])
def test_each_optional_input_comes_without_options_once(name: str) -> None:
    """A kernel may have a path of its own for it."""
    space = Space(OPS[name], "float32", Promises())
    off = space.known_options({option: values[0] for option, values in space.options.items()})
    without_options = [set(case.present) for case in golden_cases(space) if case.options == off]
    assert set(space.optional_inputs) == set().union(*without_options)


def test_golden_cases_are_few_and_small() -> None:
    cases = list(golden_cases(Space(CAUSAL_CONV1D, "float32", Promises())))
    assert len(cases) == 24
    assert max(c.n_tokens for c in cases) <= 130
