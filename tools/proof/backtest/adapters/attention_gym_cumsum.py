"""attention-gym: sums of gates inside chunks, by its Triton kernel with heads first."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op

_CHUNK = 16


def _chunk_cumsum(g: Tensor, *, cu_seqlens: Tensor, forward: bool = True) -> Tensor:
    """y_t = the sum of g over the tokens of t's chunk up to t, or from t on; chunks start with the sequence."""
    return refs.join_sequences([_of_one(rows, forward) for rows in refs.split_sequences(g, cu_seqlens)], g)


def _of_one(g: Tensor, forward: bool) -> Tensor:
    sums = [x.cumsum(0) if forward else x.flip(0).cumsum(0).flip(0) for x in g.split(_CHUNK)]
    return torch.cat(sums)


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
