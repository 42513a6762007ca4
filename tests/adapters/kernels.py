"""Correct and incorrect kernels with various calling conventions, and their adapters, to be checked by name."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import packproof
from packproof import refs
from packproof.adapters import (
    Batched,
    Gaps,
    Padded,
    adapt,
    cu_seqlens_int32,
    cu_seqlens_int64,
    lengths,
    mask,
    max_seqlen,
    per_token,
    position_ids,
    seq_idx,
)
from tests.adapters.stand_ins import LigerRope, causal_conv1d_fn, mamba_chunk_scan_combined, selective_scan_fn

THD = Gaps(multiple=4)


def rows_of(inside: Tensor, x: Tensor) -> Tensor:
    """x with zeros in rows that belong to no sequence."""
    return torch.where(inside[..., None], x, 0)


def _padded_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, attention_mask: Tensor) -> Tensor:
    """x: (s, longest, d)."""
    d, w = weight.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = functional.pad(x.to(wide).mT, (w, 0))  # one too many: a batch may have no tokens
    y = functional.conv1d(rows, weight[:, None].to(wide), None if bias is None else bias.to(wide), groups=d).mT[:, 1:]
    return rows_of(attention_mask, y).to(x.dtype)


def _padded_conv_over_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, attention_mask: Tensor) -> Tensor:
    """As if the batch were one long row: padding and the previous sequence reach each row's first tokens."""
    one = _padded_conv(x.flatten(0, 1)[None], weight, bias, attention_mask=attention_mask.flatten()[None])
    return one.view_as(x)


def _thd_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, cu_seqlens_padded: Tensor
) -> Tensor:
    """x: (t', d), with sequences at cu_seqlens_padded."""
    pieces = zip(cu_seqlens_padded.tolist(), cu_seqlens.diff().tolist(), strict=False)
    kept = torch.cat([torch.arange(start, start + n) for start, n in pieces] or [torch.arange(0)])
    y = refs.causal_conv1d(x[kept], weight, bias, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return torch.zeros_like(x).index_copy(0, kept, y)


def _thd_conv_without_gaps(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, cu_seqlens_padded: Tensor
) -> Tensor:
    """Sequences at cu_seqlens, which is where they would lie without gaps."""
    y = refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y


def _heads_first_rope(
    x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, *, interleaved: bool = False
) -> Tensor:
    """x: (1, h, t, k), position_ids: (1, t)."""
    assert not interleaved or cos.ndim == 2
    rows = position_ids[0].long()
    r, wide = cos.shape[1], torch.promote_types(x.dtype, torch.float32)
    c, s = cos[rows].to(wide), sin[rows].to(wide)
    wide_x, rest = x[..., : 2 * r].to(wide), x[..., 2 * r :]
    first, second = (wide_x[..., ::2], wide_x[..., 1::2]) if interleaved else (wide_x[..., :r], wide_x[..., r:])
    pairs = torch.stack([first * c - second * s, first * s + second * c], -1 if interleaved else -2)
    return torch.cat([pairs.flatten(-2).to(x.dtype), rest], -1)


def _rope_by_row(x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, *, interleaved: bool = False) -> Tensor:
    """Positions that continue across the pack, up to the end of the tables."""
    rows = torch.arange(x.shape[2], device=x.device).clamp(max=len(cos) - 1)[None]
    return _heads_first_rope(x, cos, sin, rows, interleaved=interleaved)


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: int, scale: float | None = None
) -> Any:
    """Attention of the whole sequences, with offsets of int32 for queries and of int64 for keys."""
    assert (cu_q.dtype, cu_k.dtype) == (torch.int32, torch.int64)
    assert not len(q) or longest == cu_q.diff().max()
    return refs.attention(q, k, v, cu_seqlens=cu_q, softmax_scale=scale), "another value"


class InPlace(torch.autograd.Function):
    """Rotates q and k, (1, h, t, k), in place, and their incoming gradients too."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.mark_dirty(q, k)
        ctx.save_for_backward(cos, sin)
        return LigerRope.rotate(q, cos, sin), LigerRope.rotate(k, cos, sin)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return LigerRope.rotate(dq, cos, -sin), LigerRope.rotate(dk, cos, -sin), None, None


def _scaled(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, n: Tensor, rows: Tensor) -> Tensor:
    """The convolution, with metadata that packproof does not have: lengths, and an entry for each row."""
    assert rows.shape == (1, x.shape[1])
    starts = torch.cat([n.new_zeros(1), n.cumsum(0)])
    y = refs.causal_conv1d(x[0], weight, bias, cu_seqlens=starts.int())
    assert isinstance(y, Tensor)
    return y[None]


@per_token(outside=7)
def _own(cu_seqlens: Tensor, tokens: int) -> Tensor:
    return torch.arange(tokens, device=cu_seqlens.device)


NO_STATE = ("initial_states", "return_final_states")
FP32 = ("float32",)

padded = adapt(_padded_conv, op="causal_conv1d", tokens=Padded(), metadata={"attention_mask": mask}, dtypes=FP32)
leaky_padded = adapt(
    _padded_conv_over_rows, op="causal_conv1d", tokens=Padded(), metadata={"attention_mask": mask}, dtypes=FP32
)
gaps = adapt(
    _thd_conv,
    op="causal_conv1d",
    tokens=THD,
    metadata={"cu_seqlens": cu_seqlens_int32, "cu_seqlens_padded": THD.cu_seqlens},
    dtypes=FP32,
)
ignores_gaps = adapt(
    _thd_conv_without_gaps,
    op="causal_conv1d",
    tokens=THD,
    metadata={"cu_seqlens": cu_seqlens_int32, "cu_seqlens_padded": THD.cu_seqlens},
    dtypes=FP32,
)
heads_first = adapt(
    _heads_first_rope,
    op="rope",
    tokens=Batched(axis=2),
    metadata={"position_ids": position_ids},
    dtypes=FP32,
    slack=False,
)
wrong_positions = adapt(
    _rope_by_row, op="rope", tokens=Batched(axis=2), metadata={"position_ids": position_ids}, dtypes=FP32, slack=False
)
channels_first = adapt(
    causal_conv1d_fn,
    op="causal_conv1d",
    tokens=Batched(axis=-1),
    metadata={"seq_idx": seq_idx},
    without=NO_STATE,
    refuses=("only supports width", "only supported for channel last"),
    dtypes=FP32,
)
batched = adapt(
    mamba_chunk_scan_combined,
    op="ssd",
    tokens=Batched(),
    metadata={"seq_idx": seq_idx},
    given={"chunk_size": 256},
    without=NO_STATE,
    dtypes=FP32,
)
padded_channels_first = adapt(selective_scan_fn, op="selective_scan", tokens=Padded(axis=-1), metadata={}, dtypes=FP32)
packed = adapt(
    _varlen,
    op="attention",
    metadata={"cu_q": cu_seqlens_int32, "cu_k": cu_seqlens_int64, "longest": max_seqlen},
    names={"softmax_scale": "scale"},
    declines=lambda a: "one width" if a["q"].shape[-1] != a["v"].shape[-1] else None,
    dtypes=FP32,
)
own_metadata = adapt(
    _scaled, op="causal_conv1d", tokens=Batched(), metadata={"n": lengths, "rows": _own}, dtypes=FP32, slack=False
)


def _tables(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, place: Tensor) -> None:
    c, s = (torch.cat([x[place[0].long()]] * 2, -1)[None] for x in (cos, sin))
    InPlace.apply(q, k, c, s)


in_place = adapt(
    _tables,
    op="rope_qk",
    tokens=Batched(axis=2),
    metadata={"place": position_ids},
    in_place=("q", "k"),
    declines=lambda a: "rotates whole heads" if 2 * a["cos"].shape[1] != a["q"].shape[2] else None,
    dtypes=FP32,
    promises=packproof.Promises(deterministic=True),
    slack=False,
)


def _multiplying(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, seq_idx: Tensor) -> Tensor:
    """x: (1, t, d). Masks by multiplying, so that NaN passes, and reads the first token of an empty pack."""
    assert x[0, 0] is not None
    wide, w = torch.promote_types(x.dtype, torch.float32), weight.shape[1]
    y = torch.zeros_like(x, dtype=wide) if bias is None else bias.to(wide).expand_as(x)
    rows = functional.pad(x.to(wide), (0, 0, w - 1, 0))
    ids = functional.pad(seq_idx, (w - 1, 0), value=-1)
    for tap in range(w):
        same = (ids[:, tap : tap + x.shape[1]] == seq_idx)[..., None]
        y = y + same * rows[:, tap : tap + x.shape[1]] * weight[:, tap].to(wide)
    return y.to(x.dtype)


multiplying = adapt(
    _multiplying, op="causal_conv1d", tokens=Batched(), metadata={"seq_idx": seq_idx}, dtypes=FP32, slack=False
)


@packproof.kernel(op="causal_conv1d", dtypes=FP32)
def unsteady(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """Correct, except for a last bit that changes from call to call, as with atomics."""
    _CALLS.append(None)
    y = refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y * (1 + 2.0**-23 * (len(_CALLS) % 3 == 1))  # not of a period that a property's pairs of calls may have


_CALLS: list[None] = []


@packproof.kernel(op="causal_conv1d", dtypes=["float32"], slack=False)
def refusing(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """It refuses empty sequences, which it does not declare."""
    if not bool((cu_seqlens.diff() > 0).all()):
        raise ValueError("every sequence must have a length above zero")
    y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y


@packproof.kernel(op="causal_conv1d", dtypes=["float32"], slack=False, domain="length > 0")
def declaring(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return refusing(x, weight, cu_seqlens=cu_seqlens)
