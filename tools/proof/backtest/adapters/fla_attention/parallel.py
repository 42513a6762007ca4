"""flash-linear-attention: its softmax attention, without gates."""

from torch import Tensor

from packproof.properties.declarations import Promises, kernel


@kernel(op="attention", promises=Promises(compute="operand"), fixed={"causal": True}, slack=False)
def parallel_attention(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, softmax_scale: float | None = None
) -> Tensor:
    from fla.ops.attn.parallel import parallel_attn  # noqa: PLC0415

    y: Tensor = parallel_attn(*(x.unsqueeze(0) for x in (q, k, v)), scale=softmax_scale, cu_seqlens=cu_seqlens)
    return y.squeeze(0)


@kernel(op="attention", dtypes=("float32",), promises=Promises(compute="tf32"), fixed={"causal": True}, slack=False)
def parallel_attention_in_tf32(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, softmax_scale: float | None = None
) -> Tensor:
    """Its products of fp32 are those of `tl.dot`, by default in tf32."""
    return parallel_attention(q, k, v, cu_seqlens=cu_seqlens, softmax_scale=softmax_scale)
