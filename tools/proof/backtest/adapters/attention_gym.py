"""attention-gym: its recurrent KDA, whose decays are logarithms of base 2, and sums of gates inside chunks."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op

_CHUNK = 16  # tokens


@kernel(op="kda", slack=False)
def naive_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    from attn_gym.linear.kda.naive import naive_recurrent_kda  # noqa: PLC0415

    tokens = (x.unsqueeze(0) for x in (q, k, v, g / math.log(2), beta))
    y, states = naive_recurrent_kda(*tokens, scale, initial_states, return_final_states, cu_seqlens)
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)


@kernel(op="kda")
def naive_kda_with_slack(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Rows past the last sequence are passed, too."""
    y = naive_kda(q, k, v, g, beta, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y


def _chunk_cumsum(g: Tensor, *, cu_seqlens: Tensor, forward: bool = True) -> Tensor:
    """y_t = the sum of g over the tokens of t's chunk up to t, or from t on; chunks start with the sequence."""
    return refs.join_sequences([_chunk_sums(rows, forward) for rows in refs.split_sequences(g, cu_seqlens)], g)


def _chunk_sums(g: Tensor, forward: bool) -> Tensor:
    chunks = torch.split(g, _CHUNK)
    return torch.cat([x.cumsum(0) if forward else x.flip(0).cumsum(0).flip(0) for x in chunks])


CHUNK_CUMSUM = Op(
    name="chunk_cumsum",
    reference=_chunk_cumsum,
    inputs={"g": "t h"},
    outputs={"y": "t h"},
    options={"forward": (True, False)},
    sizes=({"h": 1}, {"h": 2}, {"h": 3}),
    causal="forward",
)


@kernel(op=CHUNK_CUMSUM, gradients=False, slack=False)
def chunk_cumsum(g: Tensor, *, cu_seqlens: Tensor, forward: bool = True) -> Tensor:
    """g lies in memory as (h, t). The kernel took a flag for that at first, and takes strides since."""
    from attn_gym.linear.kda.bwd.triton import cumsum  # noqa: PLC0415

    launcher = cumsum.chunk_local_cumsum_scalar_kernel
    tokens, heads = g.shape
    rows = g.T.contiguous()
    sums = torch.empty_like(rows)
    chunks = _chunks(cu_seqlens)
    if not len(chunks):
        return sums.T
    strides = (1, tokens)
    layout: dict[str, Any] = {"HEAD_FIRST": True}
    if "HEAD_FIRST" not in launcher.arg_names:
        layout = {"s_batch_stride": 0, "o_batch_stride": 0, "S_STRIDES": strides, "O_STRIDES": strides}
    launcher[len(chunks), heads](
        rows, sums, None, cu_seqlens, chunks, tokens, B=1, H=heads, BT=_CHUNK, REVERSE=not forward, **layout
    )
    return sums.T


def _chunks(cu_seqlens: Tensor) -> Tensor:
    """(number of the sequence, number of its chunk) for each chunk."""
    lengths = [end - start for start, end in pairwise(cu_seqlens.tolist())]
    chunks = [(j, k) for j, n in enumerate(lengths) for k in range(-(-n // _CHUNK))]
    return cu_seqlens.new_tensor(chunks).view(-1, 2)
