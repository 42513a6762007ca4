"""Properties that judge one or two cases judge those with a boundary, where the kernel's domain has any."""

from functools import cache

import pytest

from packproof.harness.check.rounds import share_of_dtype
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.layouts import Lengths
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property
from packproof.properties.laws.torch_integration import smallest_cases
from packproof.properties.ops.catalogue import OPS

DTYPES = ("float32", "bfloat16", "float16")
FEW = [law for law in PROPERTIES.values() if law.quick]
SHARED_OUT = [law for law in PROPERTIES.values() if law.dtype_independent]


def space(op: str, dtype: str = "float32", domain: str = "") -> Space:
    conditions = Domain.of(domain) if domain else Domain()
    return Space(OPS[op], dtype, Promises(), domain=conditions)


def case(*lengths: int) -> Case:
    return Case(lengths, "float32", tuple(OPS["causal_conv1d"].sizes[0].items()))


@pytest.mark.parametrize(
    ("layouts", "selected"),
    [
        ([(0, 3), (1, 0), (2, 5)], (2, 5)),  # smaller packs without a boundary
        ([(1, 2), (0, 1), (1, 2, 4)], (1, 2)),
        ([(3, 3), (0, 4), (5, 0, 0)], (0, 4)),  # no pack with a boundary changes when it is reversed
    ],
)
def test_the_smallest_pack_with_a_boundary_comes_before_a_smaller_one_without(
    layouts: list[Lengths], selected: Lengths
) -> None:
    [smallest] = smallest_cases(space("causal_conv1d"), [case(*lengths) for lengths in layouts])
    assert smallest.lengths == selected


@cache
def drawn(op: str, dtype: str, domain: str, examples: int) -> tuple[Case, ...]:
    where = space(op, dtype, domain)
    return (*golden_cases(where), *random_cases(where, examples, seed=0))


@pytest.mark.parametrize("law", FEW, ids=lambda law: law.name)
@pytest.mark.parametrize("op", ["causal_conv1d", "round_fp8"])
def test_a_property_of_few_cases_has_a_boundary(law: Property, op: str) -> None:
    cases = law.suited(space(op), drawn(op, "float32", "", 50))
    assert not cases or any(c.has_boundary for c in cases)


@pytest.mark.parametrize("law", SHARED_OUT, ids=lambda law: law.name)
@pytest.mark.parametrize("op", ["rope", "causal_conv1d_update"])
def test_each_dtype_has_a_boundary_among_its_share(law: Property, op: str) -> None:
    for k, dtype in enumerate(DTYPES):
        cases = law.suited(space(op, dtype, "length == 1"), drawn(op, dtype, "length == 1", 0))
        share = share_of_dtype(law, cases, k, len(DTYPES))
        assert any(c.has_boundary for c in share) or not any(c.has_boundary for c in cases), dtype
        assert set(share) <= set(cases)
