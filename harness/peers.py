"""Kernels of others as targets, each through a small adapter to packproof's calling convention.

    packproof check packproof.harness.peers:torch_varlen_attn --device cuda --dtype bf16,fp16

They are not dependencies: what is not installed cannot be imported, and the check says so.
"""

from typing import Any

from torch import Tensor

from packproof.harness.target import kernel
from packproof.properties.promises import Promises


def _longest(cu_seqlens: Tensor) -> int:
    return int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0


@kernel(op="attention", dtypes=("bfloat16", "float16"), promises=Promises(compute="operand"))
def torch_varlen_attn(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    """torch.nn.attention.varlen: FlashAttention-2 as PyTorch ships it. One head dim for q, k and v, at least 8."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  (torch 2.10 and later)

    if not q.shape[-1] == v.shape[-1] or q.shape[1] != k.shape[1]:
        raise NotImplementedError("one head dim and one number of heads for q, k and v")
    longest = _longest(cu_seqlens)
    window = (-1, 0) if causal else (-1, -1)
    result: Any = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, window_size=window)
    return result  # type: ignore[no-any-return]


@kernel(op="causal_conv1d", promises=Promises(compute="operand"))
def fla_causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """flash-linear-attention's short convolution in Triton, which takes a batch of one pack. Its states hold w inputs.

    The pre-activation is rounded to the dtype of x before the backward pass: hence compute="operand".
    """
    from fla.modules.causal_conv1d.ops import causal_conv1d  # noqa: PLC0415

    y, _ = causal_conv1d(x[None], weight, bias, activation=activation, backend="triton", cu_seqlens=cu_seqlens)
    result: Tensor = y[0]
    return result
