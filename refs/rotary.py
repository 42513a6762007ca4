"""Rotary position embedding: rotate pairs of channels by their token's position (RoFormer, Su et al. 2021, eq. 34)."""

from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from packproof.base.arguments import bind, check_options
from packproof.base.errors import checked_call
from packproof.base.signatures import ROPE, ROPE_QK
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype
from packproof.refs.rotary_options import check_rotary_tables


@checked_call
def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, offsets: Tensor | None = None, interleaved: bool = False
) -> Tensor:
    """Rotate the first 2r channels of each head; positions restart in each sequence, the other channels pass through.

    x: (t, h, k) in fp64, fp32, bf16 or fp16 (the last two compute in fp32).
    cos, sin: (m, r), one row per position, in x's dtype or fp32, with 2r <= k and a row for every position in use.
    cu_seqlens: int32 or int64 (s + 1,).
    offsets: int32 or int64 (s,), the position of each sequence's first token, such as its number of tokens in a cache;
    0 if left out. Tokens at negative positions (left padding) are not rotated.
    interleaved: channel 2i pairs with 2i + 1 (GPT-J); otherwise channel i pairs with i + r (GPT-NeoX).

    Returns y (t, h, k) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import rope
    >>> angle = torch.arange(3)[:, None] * torch.pi / 2  # a quarter of a circle for each position
    >>> x, cu_seqlens = torch.tensor([1.0, 0]).expand(4, 1, 2), torch.tensor([0, 1, 4])
    >>> rope(x, angle.cos(), angle.sin(), cu_seqlens=cu_seqlens).flatten(1).round().int()
    tensor([[ 1,  0],
            [ 1,  0],
            [ 0,  1],
            [-1,  0]], dtype=torch.int32)
    >>> starts = torch.tensor([2, -1])  # the last sequence has one row of padding
    >>> rope(x, angle.cos(), angle.sin(), cu_seqlens=cu_seqlens, offsets=starts).flatten(1).round().int()
    tensor([[-1,  0],
            [ 1,  0],
            [ 1,  0],
            [ 0,  1]], dtype=torch.int32)
    """
    sizes = bind(ROPE, cu_seqlens, x=x, cos=cos, sin=sin, offsets=offsets, values=True)
    check_options(ROPE, interleaved=interleaved)
    tokens = to_compute_dtype(x)
    cos, sin = cos.to(tokens.dtype), sin.to(tokens.dtype)
    sequences = split_sequences(tokens, cu_seqlens)
    check_rotary_tables("rope", "x", sizes, cu_seqlens, offsets)
    starts = [0] * len(sequences) if offsets is None else offsets.tolist()
    split_pattern = "t h (r two) -> two t h r" if interleaved else "t h (two r) -> two t h r"
    join_pattern = "two t h r -> t h (r two)" if interleaved else "two t h r -> t h (two r)"

    def rotate(tokens: Tensor, start: int) -> Tensor:
        padding, tokens = tokens.tensor_split([max(-start, 0)])
        rows, rotated = slice(max(start, 0), max(start, 0) + len(tokens)), 2 * sizes["r"]
        c, s = cos[rows, None], sin[rows, None]
        x1, x2 = rearrange(tokens[..., :rotated], split_pattern, two=2)
        y = rearrange(torch.stack([x1 * c - x2 * s, x1 * s + x2 * c]), join_pattern)
        return torch.cat([padding, torch.cat([y, tokens[..., rotated:]], dim=-1)])

    return join_sequences(map(rotate, sequences, starts), like=x)


@checked_call
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, offsets: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope` of queries (t, hq, k) and of keys (t, hk, k), with the same tables and offsets: two calls of `rope`.

    Returns both, each as from `rope`. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import rope_qk
    >>> q, k, table = torch.ones(5, 4, 2), torch.ones(5, 1, 2), torch.ones(3, 1)
    >>> y_q, y_k = rope_qk(q, k, table, table, cu_seqlens=torch.tensor([0, 2, 5]))
    >>> y_q.shape, y_k.shape
    (torch.Size([5, 4, 2]), torch.Size([5, 1, 2]))
    """
    bind(ROPE_QK, cu_seqlens, q=q, k=k, cos=cos, sin=sin, offsets=offsets, values=True)
    check_options(ROPE_QK, interleaved=interleaved)
    rotate = partial(rope, cos=cos, sin=sin, cu_seqlens=cu_seqlens, offsets=offsets, interleaved=interleaved)
    return rotate(q), rotate(k)
