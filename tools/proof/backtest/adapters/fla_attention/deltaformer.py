"""flash-linear-attention's DeltaFormer (Zhong et al. 2025, arXiv:2505.19488): the values that its attention reads.

u_i = v_i - β_i Σ_{j<i} p_ij u_j, with p_i = softmax of q_i · k_j / √d over the tokens before i. The second half of the
op is causal attention over u.
"""

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op


def _written_values(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    pieces = zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v, beta)), strict=True)
    return refs.join_sequences([_write(*piece) for piece in pieces], v)


def _write(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """One sequence: q, k and v (t, h, k), beta (t, h)."""
    us = [v[0]] if len(v) else []
    for i in range(1, len(v)):
        logits = (k[:i] * q[i]).sum(-1).T / q.shape[-1] ** 0.5  # [h, j]
        weights = logits.softmax(-1) * beta[i][:, None]
        us.append(v[i] - (weights[:, None] @ torch.stack(us, 1))[:, 0])
    return torch.stack(us) if us else v


WRITTEN_VALUES = Op(
    name="deltaformer_values",
    reference=_written_values,
    inputs={"q": "t h k", "k": "t h k", "v": "t h k", "beta": "t h"},
    outputs={"u": "t h k"},
    sizes=({"h": 1, "k": 16}, {"h": 2, "k": 32}),
    model_sizes=({"h": 2, "k": 64},),
    draws={"beta": "share"},
    matmul=True,
)


_SIXTEEN_BITS = ("bfloat16", "float16")  # its products round operands of fp32 to tf32


@kernel(op=WRITTEN_VALUES, dtypes=_SIXTEEN_BITS, promises=Promises(compute="operand"), slack=False, gradients=False)
def values_alone(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """As for inference."""
    return written_values(q, k, v, beta, cu_seqlens=cu_seqlens)


@kernel(op=WRITTEN_VALUES, dtypes=_SIXTEEN_BITS, promises=Promises(compute="operand"), slack=False)
def written_values(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """With its chunks of 512 tokens. Its public function needs the package flash-attn for the second half."""
    from fla.ops.deltaformer.parallel import BLOCK_SIZE_C, ParallelDeltaformerFunction  # noqa: PLC0415

    tokens = (x.unsqueeze(0) for x in (q, k, v, beta))
    u: Tensor = ParallelDeltaformerFunction.apply(*tokens, BLOCK_SIZE_C, cu_seqlens)
    return u.squeeze(0)
