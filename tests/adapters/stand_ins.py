"""Functions with the calling conventions and argument names of third-party kernels, computed by the references."""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs


def offsets(seq_idx: Tensor) -> Tensor:
    """cu_seqlens of the sequences that are not empty, from a batch of one."""
    assert seq_idx.shape[0] == 1
    assert seq_idx.dtype == torch.int32
    inside = seq_idx[0][seq_idx[0] >= 0]
    counts = inside.unique_consecutive(return_counts=True)[1]
    return torch.tensor([0, *counts.cumsum(0).tolist()])


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """causal-conv1d. x: (1, d, t), channel-last."""
    if not 2 <= weight.shape[1] <= 4:
        raise RuntimeError("causal_conv1d only supports width between 2 and 4")
    if x.stride(1) != 1 and x.shape[1] > 1:
        raise RuntimeError("seq_idx is only supported for channel last layout")
    assert seq_idx is not None
    y = refs.causal_conv1d(x[0].T, weight, bias, cu_seqlens=offsets(seq_idx), activation=activation)
    assert isinstance(y, Tensor)
    return y.T[None]


def fla_causal_conv1d(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    backend: str | None = "triton",
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """fla. x: (1, t, d). Returns the output and the final states, which hold w inputs, the first of them unread."""
    assert not kwargs
    assert cu_seqlens is not None
    given = None if initial_state is None else initial_state[..., 1:]
    y, states = refs.causal_conv1d(
        x[0],
        weight,
        bias,
        cu_seqlens=cu_seqlens,
        initial_states=given,
        activation=activation,
        return_final_states=True,
    )
    return y[None], functional.pad(states, (1, 0), value=float("nan")) if output_final_state else None


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """flash-attn. x: (t, h, k)."""
    assert cu_seqlens is not None
    assert max_seqlen == cu_seqlens.diff().max()
    return refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, offsets=from_zero(seqlen_offsets), interleaved=interleaved)


def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
) -> Tensor:
    """fla. x: (1, t, h, k). Without offsets the tables have to be as long as the pack."""
    assert cu_seqlens is not None
    starts = from_zero(seqlen_offsets)
    return refs.rope(x[0], cos, sin, cu_seqlens=cu_seqlens, offsets=starts, interleaved=interleaved)[None]


def from_zero(offsets: int | Tensor) -> Tensor:
    """Start positions as flash-attn and fla take them."""
    assert isinstance(offsets, Tensor)
    assert not (offsets < 0).any()
    return offsets


class LigerRope(torch.autograd.Function):
    """q, k: (1, h, t, k), overwritten like their incoming gradients; cos, sin: (1, t, k), a row for each token."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        assert cos.shape == sin.shape == (1, q.shape[2], q.shape[3])
        ctx.save_for_backward(cos, sin)
        return LigerRope.rotate(q, cos, sin), LigerRope.rotate(k, cos, sin)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return LigerRope.rotate(dq, cos, -sin), LigerRope.rotate(dk, cos, -sin), None, None

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[3] // 2
        rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x.copy_(x * cos[:, None] + rotated * sin[:, None])


def liger_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
    rotary_dim: int | None = None,
) -> Any:
    """liger-kernel."""
    return LigerRope.apply(q, k, cos, sin)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> Any:
    """flash-attn. q: (t, h, k). k, v: (u, h, k)."""
    assert [max_seqlen_q, max_seqlen_k] == [cu.diff().max() for cu in (cu_seqlens_q, cu_seqlens_k)]
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    options = {"causal": causal, "window_size": window_size, "softmax_scale": softmax_scale, "softcap": softcap}
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, **options)


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor:
    """mamba-ssm. u, delta, z: (b, d, t), B and C: (b, n, t) or (b, g, n, t)."""
    batch, _, tokens = u.shape
    rows = torch.arange(batch + 1) * tokens
    u, delta, B, C = (x.movedim(-1, 1).flatten(0, 1) for x in (u, delta, B, C))
    z = None if z is None else z.movedim(-1, 1).flatten(0, 1)
    y = refs.selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus=delta_softplus, cu_seqlens=rows)
    assert isinstance(y, Tensor)
    return y.unflatten(0, (batch, tokens)).movedim(1, -1)


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Tensor:
    """mamba-ssm. x: (1, t, h, p), and the others likewise."""
    assert chunk_size == 256
    assert seq_idx is not None
    z = None if z is None else z[0]
    y = refs.ssd(x[0], dt[0], A, B[0], C[0], D, z, dt_bias, cu_seqlens=offsets(seq_idx), dt_softplus=dt_softplus)
    assert isinstance(y, Tensor)
    return y[None]


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """fla. q, k, v: (1, t, h, n or p), g: (1, t, h), the logarithm of a decay, states: (s, h, n, p)."""
    assert not kwargs
    assert scale == 1.0
    assert cu_seqlens is not None
    q, k, v, g = (x[0] for x in (q, k, v, g))
    rows, states = [], []
    for j, (start, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        state = v.new_zeros(k.shape[1:] + v.shape[2:]) if initial_state is None else initial_state[j]
        for t in range(start, end):
            state = g[t].exp()[:, None, None] * state + torch.einsum("hn,hp->hnp", k[t], v[t])
            rows.append(torch.einsum("hn,hnp->hp", q[t], state))
        states.append(state)
    y = torch.stack(rows) if rows else v[:0]
    return y[None], torch.stack(states) if output_final_state else None


def flash_attn_4(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    learnable_sink: Tensor | None,
    softcap: float,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    """FlashAttention-4. q: (t, h, k). Returns the log-sum-exp, (h, t), whether it is asked for or not."""
    assert [max_seqlen_q, max_seqlen_k] == [cu.diff().max() for cu in (cu_seqlens_q, cu_seqlens_k)]
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert all(reach is None or reach >= 0 for reach in window_size)
    left, right = (-1 if reach is None else reach for reach in window_size)
    y, lse = refs.attention(
        q,
        k,
        v,
        learnable_sink,
        cu_seqlens=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        causal=causal,
        window_size=(left, right),
        softmax_scale=softmax_scale,
        softcap=softcap,
        return_lse=True,
    )
    return y, lse.T
