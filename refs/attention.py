"""Softmax attention inside each sequence (Vaswani et al. 2017, eq. 1), with grouped heads and sliding windows."""

import math

import torch
from einops import einsum, repeat
from torch import Tensor

from packproof.refs.arguments import bind, check_options
from packproof.refs.errors import ArgumentError, checked_call
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype
from packproof.refs.signatures import ATTENTION


@checked_call
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
) -> Tensor:
    """Attend from each token to the tokens of its own sequence.

    q: (t, hq, k). k: (t, hk, k). v: (t, hk, v). All of one dtype: fp64, fp32, bf16 or fp16 (the last two compute in
    fp32). Query head i reads kv head i // (hq / hk). cu_seqlens: int32 or int64 (s + 1,). window_size: (left, right),
    token i sees tokens i - left to i + right, -1 for no limit, as in FlashAttention; causal sets right to 0. So every
    token sees itself. softmax_scale: factor of the scores, k ** -0.5 if left out.

    Returns (t, hq, v), zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import attention
    >>> q, v = torch.zeros(5, 1, 2), torch.arange(1.0, 6)[:, None, None]  # equal scores: the mean of what is visible
    >>> attention(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]), causal=True).flatten()
    tensor([1.0000, 1.5000, 3.0000, 3.5000, 4.0000])
    """
    sizes = bind(ATTENTION, cu_seqlens, q=q, k=k, v=v, values=True)
    check_options(ATTENTION, causal=causal)
    left, right = _window(window_size)
    scale = max(sizes["k"], 1) ** -0.5 if softmax_scale is None else softmax_scale
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ArgumentError(f"attention: softmax_scale is {softmax_scale!r} but a finite number or None was expected")
    if causal:
        right = 0

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (repeat(x, "j hk c -> j (hk g) c", g=sizes["hq"] // sizes["hk"]) for x in (k, v))
        scores = einsum(q, k, "i h c, j h c -> h i j") * scale
        i = torch.arange(len(q), device=q.device)
        ahead = i[None, :] - i[:, None]  # of the key, as seen from the query
        visible = (ahead >= -left) & (ahead <= right)
        weights = torch.where(visible, scores, -math.inf).softmax(-1)
        return einsum(weights, v, "h i j, j h c -> i h c")

    pieces = (split_sequences(to_compute_dtype(x), cu_seqlens) for x in (q, k, v))
    none = attend(q[:0], k[:0], v[:0])  # a graph to q, k and v even if there is no sequence
    like = q.new_zeros(sizes["t"], sizes["hq"], sizes["v"])
    return join_sequences([none, *(attend(*sequence) for sequence in zip(*pieces, strict=True))], like=like)


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
