"""liger-kernel: the rotary embedding of vision towers, where tokens come before heads."""

import torch
from torch import Tensor

from packproof.adapters import position_ids
from packproof.properties.declarations import Promises, kernel


@kernel(op="rope_qk", promises=Promises(compute="operand"), domain="k == 2 * r", slack=False)
def rope_of_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """The function that it puts in the place of transformers' for vision: a row of the tables for each token.

    The kernel overwrites q, k and their incoming gradients.
    """
    from liger_kernel.transformers import rope  # noqa: PLC0415

    name = "liger_rotary_pos_emb_with_cast_and_leading_batch"
    rotate = getattr(rope, name, None) or rope.liger_rotary_pos_emb_vision
    row = position_ids(cu_seqlens, len(q))
    y_q, y_k = rotate(q.clone(), k.clone(), *(torch.cat([x[row], x[row]], -1) for x in (cos, sin)))
    for y in (y_q, y_k):
        if y.requires_grad:
            y.register_hook(Tensor.clone)
    return y_q, y_k
