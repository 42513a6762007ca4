"""flash-linear-attention: its short convolution, its rotary embedding, and simple_gla as an SSD."""

import torch
from torch import Tensor
from torch.nn import functional

from packproof.adapters import Batched, adapt, cu_seqlens
from packproof.properties.declaration import kernel
from packproof.properties.promises import Promises

# Its states hold w inputs, the op's w - 1. The pre-activation is rounded to the dtype of x before the backward pass.
causal_conv1d = adapt(
    "fla.modules.causal_conv1d.ops:causal_conv1d",
    op="causal_conv1d",
    tokens=Batched(),
    given={"backend": "triton"},
    promises=Promises(compute="operand"),
    slack=False,
)


def _no_offsets(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s,): without a tensor of offsets it requires tables as long as the pack."""
    return torch.zeros_like(cu_seqlens[1:])


rope = adapt(
    "fla.modules.rotary:rotary_embedding",
    op="rope",
    tokens=Batched(),
    metadata={"cu_seqlens": cu_seqlens, "seqlen_offsets": _no_offsets},
    refuses=("Only support D <= 256",),
    slack=False,
)


@kernel(op="rope_qk", refuses=("Only support D <= 256",), slack=False)
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Two calls of its rotary embedding."""
    y_q, y_k = (rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved) for x in (q, k))
    return y_q, y_k


@kernel(
    op="ssd",
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    refuses=("Please upgrade Triton", "requires even K and V"),  # the first: its gated backward pass on Hopper
    slack=False,
)
def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    dt_softplus: bool = False,
) -> Tensor:
    """simple_gla with queries C, keys B, values dt x and gates dt A. The skip, the gate z and softplus are torch's."""
    from fla.ops.simple_gla import chunk_simple_gla  # noqa: PLC0415

    step = dt.float() if dt_bias is None else dt.float() + dt_bias
    step = functional.softplus(step) if dt_softplus else step
    B, C = (v.repeat_interleave(x.shape[1] // v.shape[1], 1) for v in (B, C))
    values = (step[..., None] * x).to(x.dtype)
    q, k, v, g = (tensor.unsqueeze(0) for tensor in (C, B, values, step * A))
    y, _ = chunk_simple_gla(q, k, v, g=g, scale=1.0, cu_seqlens=cu_seqlens)
    result: Tensor = y.squeeze(0).float()
    if D is not None:
        result = result + (D if D.ndim == 2 else D[:, None]) * x
    if z is not None:
        result = result * functional.silu(z.float())
    return result.to(x.dtype)
