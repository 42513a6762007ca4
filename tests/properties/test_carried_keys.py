"""Prefill at once, in chunks and token by token: attention called with the keys of all tokens up to a piece's last."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import ATTENTION
from tests.properties.attention_kernels import BUGS_OF_KEYS, PROMISES, planted
from tests.sweeps import sweep

CARRY = PROPERTIES["carry"]
OF_PIECES = [bug for bug in BUGS_OF_KEYS if bug != "NaN where there are no keys"]


def cases(space: Space, tokens: int = 60) -> list[Case]:
    found = CARRY.suited(space, list(golden_cases(space)))
    return [case for case in found if max(case.n_tokens, sum(case.key_lengths or ())) <= tokens]


def violations(
    kernel: Callable[..., Any],
    promises: Promises,
    dtype: str = "float32",
    domain: str = "",
    tokens: int = 60,
    parameters: frozenset[str] | None = None,
) -> list[Violation]:
    space = Space(ATTENTION, dtype, promises, parameters, domain=Domain.of(domain))
    subject = KernelUnderTest(ATTENTION, InProcess(kernel), promises, domain=space.domain)
    found = []
    assert cases(space, tokens)
    for case in cases(space, tokens):
        violation, stopped = judge_case(subject, CARRY, case)
        assert stopped is None, f"{case}: {stopped}"
        found += [violation] if violation else []
    return found


@pytest.mark.parametrize("bug", OF_PIECES)
def test_a_piece_that_is_not_continued_is_detected(bug: str) -> None:
    found = violations(planted(bug), PROMISES)
    assert found
    assert "in pieces" in found[0].lines()[0]


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(d, marks=pytest.mark.proof) for d in ("float64", "float16"))]
)
def test_a_correct_kernel_passes(dtype: str) -> None:
    assert violations(planted(""), PROMISES, dtype) == []


State = tuple[Tensor, Tensor, Tensor]  # of a softmax over some keys: the largest score, the sum, the weighted values


def merge(one: State, other: State) -> State:
    top = torch.maximum(one[0], other[0])
    shown = torch.where(top > -torch.inf, top, 0)
    a, b = (torch.exp(state[0] - shown) for state in (one, other))
    return top, one[1] * a + other[1] * b, one[2] * a[..., None] + other[2] * b[..., None]


def in_order(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, cu_seqlens_k: Tensor, causal: bool = False, parts: int = 1
) -> Tensor:
    """Attention that adds the keys of a sequence in their order, or those of equal parts, and then the parts."""
    y = [q.new_zeros(0, q.shape[1], v.shape[2])]
    for (start, end), (first, last) in zip(pairwise(cu_seqlens.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True):
        queries, place = q[start:end] * q.shape[2] ** -0.5, torch.arange(start, end) - end + last
        nothing = (torch.full(queries.shape[:2], -torch.inf), torch.zeros(queries.shape[:2]))
        empty: State = (*nothing, torch.zeros(*queries.shape[:2], v.shape[2]))
        whole, ends = empty, [first + (last - first) * part // parts for part in range(parts + 1)]
        for begin, stop in pairwise(ends):
            part = empty
            for key in range(begin, stop):
                k_, v_ = (x[key].repeat_interleave(q.shape[1] // k.shape[1], 0) for x in (k, v))
                visible = (place >= key if causal else torch.ones_like(place).bool())[:, None].expand(queries.shape[:2])
                score = torch.where(visible, (queries * k_).sum(-1), -torch.inf)
                part = merge(part, (score, visible.float(), v_ * visible[..., None]))
            whole = merge(whole, part)
        y.append(torch.where((whole[1] > 0)[..., None], whole[2] / whole[1].clamp(min=1e-30)[..., None], 0))
    return torch.cat(y)


def test_pieces_have_the_bits_of_one_run_where_that_is_promised() -> None:
    promises = Promises(compute="fp32", chunk=4, grid="sequence", state_entry="carry")
    few: dict[str, Any] = {
        "tokens": 20,
        "domain": "slack == 0",
        "parameters": frozenset(signature(in_order).parameters),
    }
    assert violations(in_order, promises, **few) == []
    in_parts = partial(in_order, parts=2)
    found = violations(in_parts, promises, **few)
    assert found
    assert "bits differ" in found[0].lines()[0]
    assert violations(in_parts, replace(promises, state_entry=None), **few) == []


def test_a_piece_has_the_keys_up_to_its_end() -> None:
    sizes = (("hq", 1), ("hk", 1), ("k", 2), ("v", 2))
    sample = draw(ATTENTION, Case((3, 2, 2), "float32", sizes, key_lengths=(5, 1, 2), options=(("causal", True),)))
    piece = sample.piece([(0, 1, 2), (1, 0, 1), (2, 1, 2)], with_earlier_keys=True)
    assert (piece.lengths, piece.key_lengths) == ((1, 1, 1), (4, 0, 2))
    assert torch.equal(piece.inputs["k"], sample.inputs["k"][[0, 1, 2, 3, 6, 7]])
    assert torch.equal(piece.inputs["q"], sample.inputs["q"][[1, 3, 6]])
    assert draw(ATTENTION, Case((3,), "float32", sizes)).piece([(0, 0, 2)], with_earlier_keys=True).key_lengths is None


@sweep("domain", ["length <= length_k", "length % 2 == 0"], ["length > 0; length_k > 0"])
def test_each_piece_lies_in_the_domain(domain: str) -> None:
    def attend(*tensors: Tensor, cu_seqlens: Tensor, cu_seqlens_k: Tensor, **options: Any) -> Any:
        for n, m in zip(cu_seqlens.diff().tolist(), cu_seqlens_k.diff().tolist(), strict=True):
            assert Domain.of(domain).within({"length", "length_k"}).holds({}, [n], [m])
        return refs.attention(*tensors, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **options)

    assert violations(attend, Promises(), domain=f"cu_seqlens_k; slack == 0; {domain}", tokens=40) == []


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (("q", "k", "v", "cu_seqlens", "causal"), "the kernel does not take cu_seqlens_k"),
        (("q", "k", "v", "cu_seqlens", "cu_seqlens_k"), "the kernel does not take causal"),
        (("q", "k", "v", "cu_seqlens", "cu_seqlens_k", "causal"), ""),
    ],
)
def test_a_kernel_without_offsets_of_keys_is_not_asked(parameters: tuple[str, ...], reason: str) -> None:
    assert CARRY.skip_reason(Space(ATTENTION, "float32", Promises(), frozenset(parameters))) == reason


def test_a_gradient_that_does_not_reach_earlier_keys_is_detected() -> None:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, cu_seqlens_k: Tensor, causal: bool = False
    ) -> Any:
        """A cache of earlier keys, which a training step took for constants."""
        if not causal or not bool((cu_seqlens_k.diff() > cu_seqlens.diff()).all()):
            return refs.attention(q, k, v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, causal=causal)
        earlier = torch.ones(len(k), dtype=torch.bool)
        for end, n in zip(cu_seqlens_k[1:].tolist(), cu_seqlens.diff().tolist(), strict=True):
            earlier[end - n : end] = False
        k, v = (torch.where(earlier[:, None, None], x.detach(), x) for x in (k, v))
        return refs.attention(q, k, v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, causal=True)

    few: dict[str, Any] = {"domain": "slack == 0", "parameters": frozenset(signature(attend).parameters)}
    found = violations(attend, Promises(), tokens=40, **few)
    assert found
    assert all(violation.tensor is not None and violation.tensor.is_gradient for violation in found)
