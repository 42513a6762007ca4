"""flash-linear-attention: native sparse attention over selected blocks, here those of a token and before it."""

import math

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op

_BLOCK = 32  # tokens, from the start of a sequence


def _selected(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Softmax attention of each token over the tokens up to its own, in its own block and in the one before."""
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)
    return refs.join_sequences([_selected_alone(*rows) for rows in pieces], q[..., :1].expand(-1, -1, v.shape[-1]))


def _selected_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    place = torch.arange(len(q), device=q.device)
    block = place // _BLOCK
    sees = (place <= place[:, None]) & (block >= block[:, None] - 1)
    scores: Tensor = q.transpose(0, 1) @ k.permute(1, 2, 0) / math.sqrt(q.shape[-1])
    return (scores.masked_fill(~sees, -math.inf).softmax(-1) @ v.transpose(0, 1)).transpose(0, 1)


SELECTED_ATTENTION = Op(
    name="selected_attention",
    reference=_selected,
    inputs={"q": "t hq k", "k": "t hk k", "v": "t hk v"},
    outputs={"y": "t hq v"},
    sizes=({"hq": 16, "hk": 1, "k": 16, "v": 16}, {"hq": 32, "hk": 2, "k": 32, "v": 16}),
    where=("hq % hk == 0",),
    model_sizes=({"hq": 64, "hk": 4, "k": 128, "v": 128},),
    matmul=True,
)


@kernel(
    op=SELECTED_ATTENTION,
    dtypes=("bfloat16", "float16"),  # fp32 operands are rounded to tf32
    promises=Promises(chunk=_BLOCK, compute="operand"),
    domain="hq == 16 * hk; k in (16, 32, 64, 128, 256); v in (16, 32, 64, 128, 256); length > 0",
    slack=False,
)
def selected_attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The second block of a token in the first one is -1, which the kernel skips.

    It numbers sequences by their first tokens, so that none may be empty.
    """
    from fla.ops.nsa import parallel_nsa  # noqa: PLC0415

    ids = refs.seq_idx_from_cu_seqlens(cu_seqlens, len(q)).long()
    own = (torch.arange(len(q), device=q.device) - cu_seqlens[ids]) // _BLOCK
    blocks = torch.stack([own, own - 1], -1)[None, :, None].expand(-1, -1, k.shape[1], -1).contiguous()
    y: Tensor = parallel_nsa(
        *(x.unsqueeze(0) for x in (q, k, v)),
        block_indices=blocks,
        block_counts=2,
        block_size=_BLOCK,
        cu_seqlens=cu_seqlens,
    )
    return y.squeeze(0)
