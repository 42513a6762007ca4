"""Rotary position embedding: rotate pairs of channels by their token's position (RoFormer, Su et al. 2021, eq. 34)."""

import torch
from einops import rearrange
from torch import Tensor

from packproof.refs.arguments import bind, check_options, check_rotary_tables
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype
from packproof.refs.signatures import ROPE


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first 2r channels of each head; positions restart at 0 in each sequence, the rest passes through.

    x: (t, h, k) in fp64, fp32, bf16 or fp16 (the last two compute in fp32). cos, sin: (m, r), one row per position, in
    x's dtype or fp32, with 2r <= k and m at least the longest sequence. cu_seqlens: int32 or int64 (s + 1,).
    interleaved: channel 2i pairs with 2i + 1 (GPT-J); otherwise channel i pairs with i + r (GPT-NeoX).

    Returns y (t, h, k) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.
    """
    sizes = bind(ROPE, cu_seqlens, x=x, cos=cos, sin=sin, values=True)
    check_options(ROPE, interleaved=interleaved)
    tokens = to_compute_dtype(x)
    cos, sin = cos.to(tokens.dtype), sin.to(tokens.dtype)
    sequences = split_sequences(tokens, cu_seqlens)
    check_rotary_tables("rope", "x", sizes, longest=max((len(sequence) for sequence in sequences), default=0))
    pairs = "t h (r two) -> two t h r" if interleaved else "t h (two r) -> two t h r"
    back = "two t h r -> t h (r two)" if interleaved else "two t h r -> t h (two r)"

    def rotate(tokens: Tensor) -> Tensor:
        n, rotated = len(tokens), 2 * sizes["r"]
        c, s = cos[:n, None], sin[:n, None]
        x1, x2 = rearrange(tokens[..., :rotated], pairs, two=2)
        y = rearrange(torch.stack([x1 * c - x2 * s, x1 * s + x2 * c]), back)
        return torch.cat([y, tokens[..., rotated:]], dim=-1)

    return join_sequences(map(rotate, sequences), like=x)


def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """rope of queries (t, hq, k) and of keys (t, hk, k), with the same tables: two calls of rope."""
    return (
        rope(q, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved),
        rope(k, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved),
    )
