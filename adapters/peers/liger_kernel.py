"""liger-kernel: its rotary embedding of whole heads. It has no packing argument and overwrites its inputs."""

import torch
from torch import Tensor

from packproof.adapters import Batched, once, seq_idx
from packproof.adapters.metadata import positions
from packproof.adapters.peers.start_positions import from_zero_on
from packproof.properties.declaration import kernel
from packproof.properties.promises import Promises

_HEADS_FIRST = Batched(axis=2)


@kernel(op="rope_qk", promises=Promises(compute="operand"), domain="k == 2 * r", slack=False)
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor | None = None, *, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Called on a batch of one pack, with a table row for each token, gathered once per batch.

    The kernel overwrites q, k and their incoming gradients. So its time includes a copy of each.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb  # noqa: PLC0415

    cos, sin, starts = from_zero_on(cos, sin, offsets, cu_seqlens)
    rows = once("liger rows", lambda: _rows(cos, sin, starts, cu_seqlens, len(q)), cu_seqlens, cos, sin, starts)
    q_in, k_in = (_HEADS_FIRST.to(x, cu_seqlens).clone() for x in (q, k))
    rotated: tuple[Tensor, Tensor] = liger_rotary_pos_emb(q_in, k_in, *rows)
    y_q, y_k = (_returned(y, cu_seqlens, len(q)) for y in rotated)
    return y_q, y_k


def _rows(cos: Tensor, sin: Tensor, starts: Tensor, cu_seqlens: Tensor, tokens: int) -> list[Tensor]:
    """Both tables as (1, t, 2r), with two equal halves; zeros in slack."""
    place, sequence = positions(cu_seqlens, tokens), seq_idx(cu_seqlens, tokens)
    outside = (place < 0)[:, None]
    row = torch.where(place < 0, 0, place + starts[sequence.clamp(min=0)]) if len(starts) else place.clamp(min=0)
    rows = (torch.where(outside, 0, x[row]) for x in (cos, sin))
    return [torch.cat([x, x], -1).unsqueeze(0) for x in rows]


def _returned(y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(1, h, t, k) as (t, h, k). The incoming gradient is copied, since the kernel overwrites it."""
    y = _HEADS_FIRST.back(y, cu_seqlens, tokens)
    if y.requires_grad:
        y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
    return y
