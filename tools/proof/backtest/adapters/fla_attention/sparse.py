"""flash-linear-attention's native sparse attention (Yuan et al. 2025, arXiv:2502.11089, section 3.3).

A token attends to means of whole blocks of keys that lie before it (eq. 7), or to the keys of selected blocks (eq. 11).
"""

import math
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op


def _compressed_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, block_size: int = 16, scale: float | None = None
) -> Tensor:
    factor, group = q.shape[-1] ** -0.5 if scale is None else scale, q.shape[1] // k.shape[1]
    rows = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)
    ys = [_attend_to_means(q, k, v, block_size, factor) for q, k, v in rows]
    return refs.join_sequences(ys, v.repeat_interleave(group, 1))


def _attend_to_means(q: Tensor, k: Tensor, v: Tensor, block_size: int, scale: float) -> Tensor:
    """One sequence: q (t, hq, k), k and v (t, h, ...). A token before the end of the first block gets 0."""
    blocks, group = len(k) // block_size, q.shape[1] // k.shape[1]
    means = (x[: blocks * block_size].reshape(blocks, block_size, *x.shape[1:]).mean(1) for x in (k, v))
    keys, values = (x.repeat_interleave(group, 1).transpose(0, 1) for x in means)  # [hq, blocks, ...]
    ys = [torch.zeros_like(values[:, 0]) if blocks else v.new_zeros(q.shape[1], v.shape[2])] * min(
        len(q), block_size - 1
    )
    for i in range(block_size - 1, len(q)):
        n = (i + 1) // block_size
        weights = (scale * (keys[:, :n] @ q[i][..., None])[..., 0]).softmax(-1)
        ys.append((weights[:, None] @ values[:, :n])[:, 0])
    return torch.stack(ys) if ys else v.new_zeros(0, q.shape[1], v.shape[2])


_INPUTS = {"q": "t hq k", "k": "t h k", "v": "t h v"}
_COMMON: dict[str, Any] = {"outputs": {"y": "t hq v"}, "where": ("hq % h == 0",), "matmul": True}

COMPRESSED_ATTENTION = Op(
    name="nsa_compressed_attention",
    reference=_compressed_attention,
    inputs=_INPUTS,
    options={"block_size": (16, 32), "scale": (None, 0.3)},
    sizes=(
        {"hq": 16, "h": 1, "k": 16, "v": 16},
        {"hq": 16, "h": 1, "k": 32, "v": 256},
        {"hq": 32, "h": 2, "k": 16, "v": 32},
    ),
    model_sizes=({"hq": 16, "h": 1, "k": 64, "v": 64}, {"hq": 16, "h": 1, "k": 192, "v": 128}),
    **_COMMON,
)


def _means_of_blocks(x: Tensor, cu_seqlens: Tensor, block_size: int) -> Tensor:
    """The mean of each block (blocks, ...), also of the last one of a sequence, which no token attends to."""
    return torch.cat(
        [
            x[:0],
            *(
                block.mean(0, keepdim=True)
                for rows in refs.split_sequences(x, cu_seqlens)
                for block in (torch.split(rows, block_size) if len(rows) else ())
            ),
        ]
    )


# its products round operands of fp32 to tf32
@kernel(op=COMPRESSED_ATTENTION, dtypes=("float32",), promises=Promises(compute="tf32"), slack=False)
def compressed_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, block_size: int = 16, scale: float | None = None
) -> Tensor:
    from fla.ops.nsa.compression import parallel_nsa_compression  # noqa: PLC0415

    keys, values = (_means_of_blocks(x, cu_seqlens, block_size).unsqueeze(0) for x in (k, v))
    y, _ = parallel_nsa_compression(q.unsqueeze(0), keys, values, block_size, scale=scale, cu_seqlens=cu_seqlens)
    result: Tensor = y.squeeze(0)
    return result


def _selected_attention(
    q: Tensor, k: Tensor, v: Tensor, choice: Tensor, *, cu_seqlens: Tensor, block_size: int = 1
) -> Tensor:
    """A token attends to its own block, up to itself, and to another block before it."""
    group = q.shape[1] // k.shape[1]
    rows = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v, choice)), strict=True)
    ys = [_attend_to_blocks(*row, block_size=block_size) for row in rows]
    return refs.join_sequences(ys, v.repeat_interleave(group, 1))


def _attend_to_blocks(q: Tensor, k: Tensor, v: Tensor, choice: Tensor, *, block_size: int) -> Tensor:
    group, tokens = q.shape[1] // k.shape[1], torch.arange(len(q), device=q.device)
    own = tokens // block_size
    block, position = own[None], tokens[:, None]
    is_seen = (block == own[:, None]) | (block == _other_block(choice, own)[:, None])  # [i, j]
    keys, values = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
    logits = q.shape[-1] ** -0.5 * (q.transpose(0, 1) @ keys.mT)
    logits = logits.masked_fill(~is_seen | (tokens[None] > position), -math.inf)
    y: Tensor = (logits.softmax(-1) @ values).transpose(0, 1)
    return y


def _other_block(choice: Tensor, own: Tensor) -> Tensor:
    """A block before a token's own; in the first block the next one, which lies past the token."""
    return torch.where(own > 0, choice.long() % own.clamp(min=1), own + 1)


SELECTED_ATTENTION = Op(
    name="nsa_selected_attention",
    reference=_selected_attention,
    inputs={**_INPUTS, "choice": "t"},
    options={"block_size": (1, 4)},
    sizes=({"hq": 2, "h": 1, "k": 4, "v": 3}, {"hq": 4, "h": 2, "k": 8, "v": 8}),
    draws={"choice": "id|k"},
    constants=frozenset({"choice"}),
    **_COMMON,
)


@kernel(op=SELECTED_ATTENTION, slack=False)
def naive_selected_attention(
    q: Tensor, k: Tensor, v: Tensor, choice: Tensor, *, cu_seqlens: Tensor, block_size: int = 1
) -> Tensor:
    """The same blocks for all heads."""
    from fla.ops.nsa.naive import naive_nsa  # noqa: PLC0415

    starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff(), output_size=len(q))
    own = (torch.arange(len(q), device=q.device) - starts) // block_size
    blocks = torch.stack([own, _other_block(choice, own)], -1)[:, None].expand(-1, k.shape[1], -1)
    tokens = (x.unsqueeze(0) for x in (q, k, v))
    y: Tensor = naive_nsa(*tokens, indices=blocks.unsqueeze(0), block_size=block_size, cu_seqlens=cu_seqlens)
    return y.squeeze(0)
