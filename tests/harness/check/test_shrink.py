"""Shrinking of cases with thousands of keys or tokens: few calls, each as small as it can be."""

import pytest

from packproof.harness.check.request import PROFILES
from packproof.harness.check.shrink import shrink
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

DECODE = Space(OPS["attention"], "float32", Promises(), domain=Domain.of("length == 1"))


@pytest.mark.parametrize("most_keys", [64, 777, 1024])
def test_many_keys_are_made_few_in_few_calls(most_keys: int) -> None:
    def fails(case: Case) -> bool:
        return max(case.key_lengths or (0,)) > most_keys

    first_case = next(filter(fails, golden_cases(DECODE)))
    case, n_tried = shrink(first_case, DECODE, fails, PROFILES["quick"].shrink)
    assert (case.lengths, case.key_lengths) == ((1,), (most_keys + 1,))
    assert n_tried <= 80


def test_a_long_sequence_is_cut_where_it_begins_to_fail() -> None:
    space = Space(OPS["ssd"], "float32", Promises())
    first_case = next(golden_cases(space)).with_lengths((8193,))
    case, n_tried = shrink(
        first_case, space, lambda case: max(case.lengths, default=0) > 4096, PROFILES["quick"].shrink
    )
    assert case.lengths == (4097,)
    assert n_tried <= 80
