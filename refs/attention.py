"""Softmax attention inside each sequence (Vaswani et al. 2017, eq. 1), with grouped heads, windows and sinks."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from einops import einsum, repeat
from torch import Tensor

from packproof.base.arguments import bind, check_options, finite_scale
from packproof.base.errors import checked_call, typed_as
from packproof.base.signatures import ATTENTION
from packproof.refs.attention_options import check_softcap, reaches
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype

if TYPE_CHECKING:
    from packproof.refs import overloads


@typed_as(lambda: overloads.attention)
@checked_call
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend from each token to the keys of its own sequence.

    The last query of a sequence is aligned with its last key, as in FlashAttention since 2.1: of n queries and m keys,
    query i has the position of key i + m - n. All tensors share one dtype: fp64, fp32, bf16 or fp16 (the last two
    compute in fp32).

    q: (t, hq, k). Query head i reads kv head i // (hq / hk).
    k: (u, hk, k).
    v: (u, hk, v).
    sinks: (hq,), an additional score of each query head in the softmax, without a value (gpt-oss).
    cu_seqlens: int32 or int64 (s + 1,), of the queries.
    cu_seqlens_k: int32 or int64 (s + 1,), of the keys. If left out, it is cu_seqlens, and u is t.
    causal: no query sees a later key; sets the right reach to 0.
    window_size: (left, right), how many keys a query sees before and after its own position, -1 for no limit.
    softmax_scale: factor of the scores, k ** -0.5 if left out.
    softcap: scores are softcap tanh(score / softcap) (Gemma 2); 0 for none.
    return_lse: also return the natural logarithm of the softmax's denominator, sink included.

    Returns y (t, hq, v) and, with return_lse, (t, hq) in fp32 or fp64. Both are zero in slack. A query without a
    visible key has y = 0, and -inf or its sink for the logarithm. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import attention
    >>> q, v = torch.zeros(5, 1, 2), torch.arange(1.0, 6)[:, None, None]  # equal scores: the mean of what is visible
    >>> attention(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]), causal=True).flatten()
    tensor([1.0000, 1.5000, 3.0000, 3.5000, 4.0000])
    >>> y, lse = attention(q, q, v, torch.zeros(1), cu_seqlens=torch.tensor([0, 2, 5]), causal=True, return_lse=True)
    >>> y.flatten(), lse.flatten().exp()  # a sink of score 0 counts as one more token, of value 0
    (tensor([0.5000, 1.0000, 1.5000, 2.3333, 3.0000]), tensor([2., 3., 2., 3., 4.]))
    >>> new, cu_seqlens_k = torch.tensor([0, 1, 2]), torch.tensor([0, 2, 5])  # one query at the end of each sequence
    >>> attention(q[:2], q, v, cu_seqlens=new, cu_seqlens_k=cu_seqlens_k, causal=True).flatten()
    tensor([1.5000, 4.0000])
    """
    sizes = bind(ATTENTION, cu_seqlens, q=q, k=k, v=v, sinks=sinks, values=True, cu_seqlens_k=cu_seqlens_k)
    check_options(ATTENTION, causal=causal, return_lse=return_lse)
    left_reach, right_reach = reaches(window_size, causal=causal)
    scale = finite_scale("attention", softmax_scale, sizes["k"], "softmax_scale")
    check_softcap(softcap)
    sinks = None if sinks is None else to_compute_dtype(sinks)  # once: its gradient is a sum over the sequences

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (repeat(x, "j hk c -> j (hk g) c", g=sizes["hq"] // sizes["hk"]) for x in (k, v))
        scores = einsum(q, k, "i h c, j h c -> h i j") * scale
        if softcap:
            scores = softcap * (scores / softcap).tanh()
        i, j = (torch.arange(-len(x), 0, device=x.device) for x in (q, k))  # the last query is aligned to the last key
        key_distance = j[None, :] - i[:, None]  # from the query to the key
        visible = (key_distance >= -left_reach) & (key_distance <= right_reach)
        # a softmax over no term is NaN, and so are its derivatives: keep some terms, and select
        sees_no_key = ~visible.any(-1) if sinks is None else torch.zeros_like(i, dtype=torch.bool)
        terms = torch.where(visible | sees_no_key[:, None], scores, -math.inf)
        if sinks is not None:
            terms = torch.cat([terms, repeat(sinks, "h -> h i 1", i=len(q))], -1)
        weights = torch.where(visible, terms.softmax(-1)[..., : len(k)], 0)
        lse = torch.where(sees_no_key, -math.inf, terms.logsumexp(-1))
        return einsum(weights, v, "h i j, j h c -> i h c"), lse.mT

    return attend_sequences(attend, q, k, v, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, return_lse=return_lse)


def attend_sequences(
    attend: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention by a function over one sequence: `y, lse = attend(q, k, v)`, with tensors in the compute dtype."""
    key_offsets = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    pieces = (
        split_sequences(to_compute_dtype(x), cu) for x, cu in ((q, cu_seqlens), (k, key_offsets), (v, key_offsets))
    )
    empty_result = attend(q[:0], k[:0], v[:0])  # a graph to every input even if there is no sequence
    ys, lses = zip(empty_result, *(attend(*sequence) for sequence in zip(*pieces, strict=True)), strict=True)
    y = join_sequences(ys, like=q.new_zeros(*q.shape[:2], v.shape[2]))
    return (y, join_sequences(lses, like=to_compute_dtype(q.new_zeros(q.shape[:2])))) if return_lse else y
