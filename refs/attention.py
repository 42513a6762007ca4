"""Softmax attention inside each sequence (Vaswani et al. 2017, eq. 1), with grouped heads, sliding windows and sinks."""

import math
from typing import Literal, overload

import torch
from einops import einsum, repeat
from torch import Tensor

from packproof.refs.arguments import bind, check_options
from packproof.refs.errors import ArgumentError, checked_call
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype
from packproof.refs.signatures import ATTENTION


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softmax_scale: float | None = None, softcap: float = 0.0,
    return_lse: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softmax_scale: float | None = None, softcap: float = 0.0,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softmax_scale: float | None = None, softcap: float = 0.0,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@checked_call
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend from each token to the tokens of its own sequence.

    q: (t, hq, k). k: (t, hk, k). v: (t, hk, v). sinks: (hq,), a score of each query head that takes its share of the
    softmax and has no value (gpt-oss). All of one dtype: fp64, fp32, bf16 or fp16 (the last two compute in fp32).
    Query head i reads kv head i // (hq / hk). cu_seqlens: int32 or int64 (s + 1,). window_size: (left, right), token i
    sees tokens i - left to i + right, -1 for no limit, as in FlashAttention; causal sets right to 0. So every token
    sees itself. softmax_scale: factor of the scores, k ** -0.5 if left out. softcap: scores are softcap tanh(score /
    softcap) (Gemma 2); 0 for none.

    Returns (t, hq, v), zero in slack, and with return_lse also the natural logarithm of the softmax's denominator, of
    the sink too, (t, hq) in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import attention
    >>> q, v = torch.zeros(5, 1, 2), torch.arange(1.0, 6)[:, None, None]  # equal scores: the mean of what is visible
    >>> attention(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]), causal=True).flatten()
    tensor([1.0000, 1.5000, 3.0000, 3.5000, 4.0000])
    >>> y, lse = attention(q, q, v, torch.zeros(1), cu_seqlens=torch.tensor([0, 2, 5]), causal=True, return_lse=True)
    >>> y.flatten(), lse.flatten().exp()  # a sink of score 0 counts as one more token, of value 0
    (tensor([0.5000, 1.0000, 1.5000, 2.3333, 3.0000]), tensor([2., 3., 2., 3., 4.]))
    """
    sizes = bind(ATTENTION, cu_seqlens, q=q, k=k, v=v, sinks=sinks, values=True)
    check_options(ATTENTION, causal=causal, return_lse=return_lse)
    left, right = _window(window_size)
    scale = max(sizes["k"], 1) ** -0.5 if softmax_scale is None else _finite("softmax_scale", softmax_scale, " or None")
    softcap = _finite("softcap", softcap)
    if softcap < 0:
        raise ArgumentError(f"attention: softcap is {softcap!r} but a number above 0, or 0 for none, was expected")
    if causal:
        right = 0
    sinks = None if sinks is None else to_compute_dtype(sinks)  # once: its gradient is a sum over the sequences

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (repeat(x, "j hk c -> j (hk g) c", g=sizes["hq"] // sizes["hk"]) for x in (k, v))
        scores = einsum(q, k, "i h c, j h c -> h i j") * scale
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        i = torch.arange(len(q), device=q.device)
        ahead = i[None, :] - i[:, None]  # of the key, as seen from the query
        visible = (ahead >= -left) & (ahead <= right)
        terms = torch.where(visible, scores, -math.inf)
        if sinks is not None:
            terms = torch.cat([terms, repeat(sinks, "h -> h i 1", i=len(q))], -1)
        weights = terms.softmax(-1)[..., : len(k)]
        return einsum(weights, v, "h i j, j h c -> i h c"), terms.logsumexp(-1).mT

    pieces = (split_sequences(to_compute_dtype(x), cu_seqlens) for x in (q, k, v))
    none = attend(q[:0], k[:0], v[:0])  # a graph to every input even if there is no sequence
    ys, lses = zip(none, *(attend(*sequence) for sequence in zip(*pieces, strict=True)), strict=True)
    y = join_sequences(ys, like=q.new_zeros(sizes["t"], sizes["hq"], sizes["v"]))
    lse = join_sequences(lses, like=to_compute_dtype(q.new_zeros(sizes["t"], sizes["hq"])))
    return (y, lse) if return_lse else y


def _finite(name: str, value: float, or_else: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ArgumentError(f"attention: {name} is {value!r} but a finite number{or_else} was expected")
    return value


def _window(window_size: tuple[int, int]) -> tuple[float, float]:
    """How far a token sees to the left and to the right."""
    if (
        not isinstance(window_size, tuple | list)
        or len(window_size) != 2
        or not all(type(reach) is int and reach >= -1 for reach in window_size)
    ):
        raise ArgumentError(
            f"attention: window_size is {window_size!r} but (left, right) was expected; each 0 or more, -1 for no limit"
        )
    left, right = (math.inf if reach == -1 else reach for reach in window_size)
    return left, right
