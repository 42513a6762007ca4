"""Keys have lengths of their own: a decode kernel, with one token for each sequence, meets every number of keys."""

from functools import cache
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from packproof.base.errors import UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.layouts import BOUNDARY_CLASSES, KEY_CLASSES
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

ATTENTION = OPS["attention"]
PARAMETERS = frozenset({"q", "k", "v", "cu_seqlens", "cu_seqlens_k"})
C = 16


class _Decode:
    """Attention of each sequence's tokens over its first keys, at most so many."""

    def __init__(self, most_keys: int | None) -> None:
        self.most_keys = most_keys

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None = None
    ) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        spans = pairwise(cu_seqlens.tolist()), pairwise((cu_seqlens if cu_seqlens_k is None else cu_seqlens_k).tolist())
        y = q.new_zeros(*q.shape[:2], v.shape[2])
        for (start, end), (first, last) in zip(*spans, strict=True):
            keys = slice(first, last if self.most_keys is None else min(last, first + self.most_keys))
            scores = torch.einsum("ihc,jhc->hij", q[start:end], k[keys].repeat_interleave(groups, 1))
            weights = (scores * q.shape[2] ** -0.5).softmax(-1)
            y[start:end] = torch.einsum("hij,jhc->ihc", weights, v[keys].repeat_interleave(groups, 1))
        return y


def _space(domain: str, parameters: frozenset[str] = PARAMETERS) -> Space:
    return Space(ATTENTION, "float32", Promises(), parameters, domain=Domain.of(domain))


@cache
def _golden(domain: str) -> list[Case]:
    """The golden cases of a domain, which take longer to find than to judge."""
    return list(golden_cases(_space(domain)))


def _judge(most_keys: int | None, domain: str) -> Violation | None:
    """The first violation of the reference over the golden cases."""
    decode = _Decode(most_keys)
    assert frozenset(describe_kernel(decode)["parameters"]) == PARAMETERS
    kernel = KernelUnderTest(ATTENTION, InProcess(decode), Promises(), gradients=False, domain=Domain.of(domain))
    violations = (first_violation(kernel, REFERENCE, case) for case in _golden(domain))
    return next((violation for violation in violations if violation), None)


DOMAINS = ("length == 1", "longest <= 1", "tokens == sequences", "length <= 4", "")


@sweep("most_keys, domain", [(64, ""), (64, "length == 1")], [*product((64, 1024), DOMAINS)])
def test_a_kernel_that_reads_the_first_keys_alone_is_detected(most_keys: int, domain: str) -> None:
    violation = _judge(most_keys, domain)
    assert violation is not None
    assert str(violation.tensor) == "y"


@sweep("domain", ["length == 1; length_k >= 16"], ["longest <= 1", "length == 1", ""])
def test_a_kernel_reading_all_keys_passes(domain: str) -> None:
    assert _judge(None, domain) is None


@sweep("domain", ["length == 1"], ["longest <= 1"])
def test_keys_meet_their_classes_beside_single_tokens(domain: str) -> None:
    keys = {m for case in _golden(domain) for m in case.key_lengths or ()}
    assert {0, 1, C - 1, C, C + 1, 2 * C, 2 * C + 1, 300, 1025, 4097} <= keys


def test_the_classes_to_judge_are_those_that_the_domain_allows_and_those_of_free_keys() -> None:
    assert _space("").possible_classes == set(BOUNDARY_CLASSES)
    assert _space("length > 0").possible_classes == {
        name for name in BOUNDARY_CLASSES if "empty" not in name and name != "length 0"
    }
    decode = _space("length == 1").possible_classes
    assert decode >= {*KEY_CLASSES, "length 1", "one sequence", "more than 32 sequences"}
    assert not any("length kC" in name or "empty" in name for name in decode)
    assert set(KEY_CLASSES) - _space("length == 1; length_k > 1").possible_classes == {"no keys", "1 key"}


def test_a_case_of_free_keys_has_their_classes() -> None:
    case = next(case for case in golden_cases(_space("length == 1")) if case.key_lengths and max(case.key_lengths) > 3)
    keyless = case.replace(key_lengths=(0,) * len(case.lengths))
    assert {"length 1", "no keys"} <= _space("length == 1").boundary_classes(keyless)
    assert "no keys" not in _space("").boundary_classes(keyless)


def test_calls_without_a_second_packing_remain() -> None:
    assert any(case.key_lengths is None for case in _golden("length == 1"))
    assert all(case.key_lengths is not None for case in _golden("length == 1; length_k >= 16"))
    assert all(case.key_lengths is not None for case in _golden("cu_seqlens_k"))


@pytest.mark.parametrize("law", ["reuse", "gradients", "modes", "double_backward", "torch_compile"])
def test_properties_of_the_smallest_packs_have_packs_of_single_tokens(law: str) -> None:
    """Such a pack is the same in reverse order."""
    assert PROPERTIES[law].suited(_space("length == 1"), _golden("length == 1"))


def test_a_kernel_without_offsets_of_keys_gets_none() -> None:
    cases = golden_cases(_space("length == 1", frozenset({"q", "k", "v", "cu_seqlens"})))
    assert all(case.key_lengths is None for case in cases)


@pytest.mark.parametrize(
    ("domain", "lengths", "keys", "holds"),
    [
        ("length == 1", (1, 1), (5, 0), True),
        ("length_k > 0", (1, 1), (5, 0), False),
        ("length_k > 0", (1, 0), None, False),
        ("length <= length_k", (1, 3), (2, 3), True),
        ("length <= length_k", (1, 3), (2, 2), False),
        ("longest_k <= 4; tokens_k == 6; tokens == 2", (1, 1), (4, 2), True),
        ("longest_k <= 4", (9, 1), (4, 5), False),
    ],
)
def test_conditions_on_keys(domain: str, lengths: tuple[int, ...], keys: tuple[int, ...] | None, holds: bool) -> None:
    case = Case(lengths, "float32", (("hq", 2), ("hk", 1), ("k", 4), ("v", 3)), key_lengths=keys)
    assert Domain.of(domain).allows(ATTENTION, case) == holds


def test_an_op_without_keys_has_no_length_of_keys() -> None:
    with pytest.raises(UsageError, match="domain has 'length_k' in 'length_k > 0', which a call of rope does not have"):
        Domain.of("length_k > 0").check(OPS["rope"], "here")
    with pytest.raises(UsageError, match="'length_k' is a number, not a condition; write 'length_k > 0'"):
        Domain.of("length_k")
