"""liger-kernel: its rotary embedding of whole heads, which has no packing argument and overwrites what it is given."""

import torch
from torch import Tensor

from packproof.adapters import Batched, once
from packproof.adapters.metadata import positions
from packproof.properties.declaration import kernel
from packproof.properties.promises import Promises

_HEADS_FIRST = Batched(axis=2)


@kernel(op="rope_qk", promises=Promises(compute="operand"), slack=False)
def rope_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Over a batch of one pack with a row of the tables for each token, gathered once per batch.

    It overwrites q, k and their incoming gradients: its time includes a copy of each.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb  # noqa: PLC0415

    if 2 * cos.shape[1] != q.shape[2]:
        raise NotImplementedError("rotates whole heads")
    rows = once("liger rows", lambda: _rows(cos, sin, positions(cu_seqlens, len(q))), cu_seqlens, cos, sin)
    q_in, k_in = (_HEADS_FIRST.to(x, cu_seqlens).clone() for x in (q, k))
    rotated: tuple[Tensor, Tensor] = liger_rotary_pos_emb(q_in, k_in, *rows)
    y_q, y_k = (_returned(y, cu_seqlens, len(q)) for y in rotated)
    return y_q, y_k


def _rows(cos: Tensor, sin: Tensor, position: Tensor) -> list[Tensor]:
    """(1, t, 2r) of both tables, the halves alike; zeros in slack."""
    rows = (torch.where(position[:, None] < 0, 0, x[position.clamp(min=0)]) for x in (cos, sin))
    return [torch.cat([x, x], -1).unsqueeze(0) for x in rows]


def _returned(y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t, h, k) of (1, h, t, k), the incoming gradient copied."""
    y = _HEADS_FIRST.back(y, cu_seqlens, tokens)
    if y.requires_grad:
        y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
    return y
