"""Attention against a loop over queries and keys, and against torch's; windows, groups and messages."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from packproof.refs import ArgumentError, PackLayout, attention

LAYOUT = PackLayout((4, 0, 1, 6), slack=2)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loop(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: tuple[int, int], scale: float) -> Tensor:
    """FlashAttention's definition for the whole pack, one query and key at a time, in Python floats."""
    y = torch.zeros(len(q), q.shape[1], v.shape[2], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for rows, h in itertools.product(LAYOUT.slices, range(q.shape[1])):
        for i in range(rows.start, rows.stop):
            seen = [
                j
                for j in range(rows.start, rows.stop)
                if not (causal and j > i)
                and not (window[0] >= 0 and j < i - window[0])
                and not (window[1] >= 0 and j > i + window[1])
            ]
            weights = [math.exp(scale * float(q[i, h] @ k[j, h // group])) for j in seen]
            y[i, h] = sum(w * v[j, h // group] for w, j in zip(weights, seen, strict=True)) / sum(weights)
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (0, 0), (1, -1), (-1, 2), (2, 1), (9, 9)])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)])
def test_values_are_the_definition(causal: bool, window: tuple[int, int], heads: tuple[int, int]) -> None:
    t = LAYOUT.total_tokens
    q, k, v = randn(t, heads[0], 3), randn(t, heads[1], 3, seed=1), randn(t, heads[1], 2, seed=2)
    y = attention(q, k, v, cu_seqlens=LAYOUT.cu_seqlens(), causal=causal, window_size=window, softmax_scale=0.6)
    torch.testing.assert_close(y, by_loop(q, k, v, causal=causal, window=window, scale=0.6), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_the_default_scale_is_that_of_torch(causal: bool) -> None:
    q, k, v = randn(5, 4, 8), randn(5, 2, 8, seed=1), randn(5, 2, 8, seed=2)
    y = attention(q, k, v, cu_seqlens=torch.tensor([0, 5]), causal=causal)
    heads_first = (x.transpose(0, 1) for x in (q, k, v))
    want = scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(y, want, rtol=1e-13, atol=1e-13)


def test_large_scores_do_not_overflow() -> None:
    q = torch.full((3, 1, 1), 1e4)
    y = attention(q, q, torch.arange(3.0).view(3, 1, 1), cu_seqlens=torch.tensor([0, 3]), softmax_scale=1.0)
    assert torch.equal(y, torch.ones(3, 1, 1))


LISTED = (
    "    q                float32 (6, 4, 8)\n"
    "    k                float32 (6, 2, 8)\n"
    "    v                float32 (6, 3, 8)\n"
    "    cu_seqlens       int32 (2,)"
)
WINDOW = "but (left, right) was expected; each 0 or more, -1 for no limit"
MESSAGES = {
    "kv heads": ({"v": torch.zeros(6, 3, 8)}, f"attention: v has 3 key heads (axis hk) but k has 2\n{LISTED}"),
    "groups": (
        {"q": torch.zeros(6, 5, 8)},
        "attention: 5 query heads (axis hq) cannot be shared evenly by 2 key heads (axis hk)",
    ),
    "window of one": ({"window_size": (3,)}, f"attention: window_size is (3,) {WINDOW}"),
    "negative window": ({"window_size": (-2, 0)}, f"attention: window_size is (-2, 0) {WINDOW}"),
    "fractional window": ({"window_size": (1.5, 0)}, f"attention: window_size is (1.5, 0) {WINDOW}"),
    "scale": ({"softmax_scale": "1"}, "attention: softmax_scale is '1' but a finite number or None was expected"),
    "infinite scale": (
        {"softmax_scale": math.inf},
        "attention: softmax_scale is inf but a finite number or None was expected",
    ),
    "causal": ({"causal": None}, "attention: causal is None but False or True was expected"),
}


@pytest.mark.parametrize(("wrong", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(wrong: dict[str, object], text: str) -> None:
    call = {
        "q": torch.zeros(6, 4, 8),
        "k": torch.zeros(6, 2, 8),
        "v": torch.zeros(6, 2, 8),
        "cu_seqlens": torch.tensor([0, 6], dtype=torch.int32),
    } | wrong
    with pytest.raises(ArgumentError) as caught:
        attention(**call)
    assert str(caught.value) == text
