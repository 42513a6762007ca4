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


def by_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float,
    softcap: float = 0.0,
    keys: PackLayout = LAYOUT,
) -> tuple[Tensor, Tensor]:
    """FlashAttention's definition for the whole pack, one query and key at a time, in Python floats."""
    y, lse = torch.zeros(len(q), q.shape[1], v.shape[2], dtype=torch.float64), torch.zeros(q.shape[:2]).double()
    group = q.shape[1] // k.shape[1]
    for (rows, cols), h in itertools.product(zip(LAYOUT.slices, keys.slices, strict=True), range(q.shape[1])):
        for i in range(rows.start, rows.stop):
            place = i - rows.stop + cols.stop
            seen = [
                j
                for j in range(cols.start, cols.stop)
                if not (causal and j > place)
                and not (window[0] >= 0 and j < place - window[0])
                and not (window[1] >= 0 and j > place + window[1])
            ]
            scores = [scale * float(q[i, h] @ k[j, h // group]) for j in seen]
            weights = [math.exp(softcap * math.tanh(x / softcap) if softcap else x) for x in scores]
            total = sum(weights) + (0 if sinks is None else math.exp(sinks[h]))
            lse[i, h] = math.log(total) if total else -math.inf
            if seen:
                y[i, h] = sum(w * v[j, h // group] for w, j in zip(weights, seen, strict=True)) / total
    return y, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (0, 0), (1, -1), (-1, 2), (2, 1), (9, 9)])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)])
def test_values_are_the_definition(causal: bool, window: tuple[int, int], heads: tuple[int, int]) -> None:
    t = LAYOUT.total_tokens
    q, k, v = randn(t, heads[0], 3), randn(t, heads[1], 3, seed=1), randn(t, heads[1], 2, seed=2)
    y = attention(q, k, v, cu_seqlens=LAYOUT.cu_seqlens(), causal=causal, window_size=window, softmax_scale=0.6)
    want, _ = by_loop(q, k, v, causal=causal, window=window, scale=0.6)
    torch.testing.assert_close(y, want, rtol=1e-13, atol=1e-13)


KEYS = PackLayout((2, 3, 0, 9), slack=1)  # fewer, some for no query, none, more
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1)},
    "softcap": {"softcap": 0.7, "causal": True},
}


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 30.0, 0.0]).double()], ids=["", "sinks"])
@pytest.mark.parametrize("keys", [LAYOUT, KEYS], ids=["", "keys"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_sinks_softcap_and_keys_of_their_own_are_the_definition(
    options: dict[str, object], keys: PackLayout, sinks: Tensor | None
) -> None:
    u = keys.total_tokens
    q, k, v = randn(LAYOUT.total_tokens, 4, 3), randn(u, 2, 3, seed=1), randn(u, 2, 5, seed=2)
    offsets = {"cu_seqlens": LAYOUT.cu_seqlens(), "cu_seqlens_k": keys.cu_seqlens()}
    found = attention(q, k, v, sinks, **offsets, softmax_scale=0.6, return_lse=True, **options)
    named = {"window" if name == "window_size" else name: value for name, value in options.items()}
    want = by_loop(q, k, v, sinks, scale=0.6, keys=keys, **named)
    torch.testing.assert_close(found, want, rtol=1e-13, atol=1e-13)
    assert found[0].isfinite().all()


@pytest.mark.parametrize(("k", "v"), [(64, 64), (192, 128), (96, 96)])
def test_a_sequence_of_fewer_queries_is_the_end_of_the_whole(k: int, v: int) -> None:
    q, keys, values = randn(7, 4, k), randn(7, 2, k, seed=1), randn(7, 2, v, seed=2)
    whole = attention(q, keys, values, cu_seqlens=torch.tensor([0, 7]), causal=True, window_size=(3, -1))
    ends = {"cu_seqlens": torch.tensor([0, 2]), "cu_seqlens_k": torch.tensor([0, 7])}
    end = attention(q[5:], keys, values, **ends, causal=True, window_size=(3, -1))
    torch.testing.assert_close(end, whole[5:], rtol=1e-12, atol=1e-13)
    heads_first = (x.transpose(0, 1) for x in (q[5:], keys, values))
    after = torch.arange(7) - torch.arange(5, 7)[:, None]
    want = scaled_dot_product_attention(*heads_first, attn_mask=(after <= 0) & (after >= -3), enable_gqa=True)
    torch.testing.assert_close(whole[5:], want.transpose(0, 1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_gradients_are_finite_differences(options: dict[str, object]) -> None:
    """Of one sequence without a query, one without a key and one in which some queries see no key."""
    offsets = {"cu_seqlens": torch.tensor([0, 0, 1, 4]), "cu_seqlens_k": torch.tensor([0, 1, 1, 3])}
    inputs = [randn(4, 2, 2), randn(3, 1, 2, seed=1), randn(3, 1, 2, seed=2), randn(2, seed=3)]

    def call(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return attention(*inputs, **offsets, return_lse=True, **options)

    assert torch.autograd.gradcheck(call, [x.requires_grad_() for x in inputs])


def test_nothing_seen_is_zero_with_zero_gradients() -> None:
    q, k, v = (randn(2, 1, 2, seed=n).requires_grad_() for n in range(3))
    y, lse = attention(q, k, v, cu_seqlens=torch.tensor([0, 2]), cu_seqlens_k=torch.tensor([0, 0]), return_lse=True)
    assert not y.any()
    assert (lse == -math.inf).all()
    assert all(not g.any() for g in torch.autograd.grad(y.sum(), [q, k, v]))


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
    "sinks": (
        {"sinks": torch.zeros(2)},
        "attention: sinks has 2 query heads (axis hq) but q has 4\n"
        "    q                float32 (6, 4, 8)\n"
        "    k                float32 (6, 2, 8)\n"
        "    v                float32 (6, 2, 8)\n"
        "    sinks            float32 (2,)\n"
        "    cu_seqlens       int32 (2,)",
    ),
    "softcap": ({"softcap": -1.0}, "attention: softcap is -1.0 but a number above 0, or 0 for none, was expected"),
    "keys past the end": (
        {"cu_seqlens_k": torch.tensor([0, 7])},
        "attention: cu_seqlens_k ends at 7 but k has 6 tokens\n"
        "    k                float32 (6, 2, 8)\n"
        "    cu_seqlens_k     int64 (2,) [0, 7]\n"
        "    Offsets count tokens from 0, never decrease and may not pass the last one.",
    ),
    "keys of other sequences": (
        {"cu_seqlens_k": torch.tensor([0, 2, 6])},
        "attention: cu_seqlens_k has 2 sequences (axis s) but cu_seqlens has 1\n"
        "    q                float32 (6, 4, 8)\n"
        "    k                float32 (6, 2, 8)\n"
        "    v                float32 (6, 2, 8)\n"
        "    cu_seqlens       int32 (2,)\n"
        "    cu_seqlens_k     int64 (3,)",
    ),
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
