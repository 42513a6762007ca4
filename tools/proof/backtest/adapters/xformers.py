"""xformers: attention over a part of the keys, with the log-sum-exp by which parts are merged."""

from itertools import pairwise

import torch
from torch import Tensor

from packproof.properties.declarations import Promises, kernel


@kernel(
    op="attention",
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    domain=("hq == hk", "k == v", "k % 8 == 0", "k <= 256", "not causal", "window_size in ((-1, -1),)"),
    gradients=False,
    slack=False,
)
def partial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Each sequence is a batch of one: with a mask for packs, its log-sum-exp has another shape where keys are none."""
    from xformers.ops import fmha  # noqa: PLC0415

    outputs, sums = [q.new_zeros(0, *q.shape[1:])], [q.new_zeros(0, q.shape[1], dtype=torch.float32)]
    keys = pairwise((cu_seqlens if cu_seqlens_k is None else cu_seqlens_k).tolist())
    for (start, end), (key_start, key_end) in zip(pairwise(cu_seqlens.tolist()), keys, strict=True):
        rows = q[start:end].unsqueeze(0), *(x[key_start:key_end].unsqueeze(0) for x in (k, v))
        y, lse = fmha.memory_efficient_attention_partial(*rows, scale=softmax_scale, op=fmha.flash.FwOp)
        outputs.append(y.squeeze(0))
        sums.append(lse.squeeze(0).T)
    return (torch.cat(outputs), torch.cat(sums)) if return_lse else torch.cat(outputs)
