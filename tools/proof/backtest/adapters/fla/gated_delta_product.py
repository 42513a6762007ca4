"""flash-linear-attention: the gated delta product, with one Householder transformation for each token.

With one, it is the gated delta rule.
"""

from torch import Tensor

from packproof.properties.declarations import Promises, kernel


@kernel(
    op="gated_delta_rule",
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    domain="hk == hv; k <= 256; gate > -1e4",  # sums of gates are differences of one running sum, in fp32
    refuses=("Please upgrade Triton",),  # its gated backward pass on Hopper: then its values are judged
    slack=False,
    float32=("g", "beta"),
)
def gated_delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    qk_l2norm: bool = False,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    from fla.ops.gated_delta_product import chunk_gated_delta_product  # noqa: PLC0415

    y, states = chunk_gated_delta_product(
        *(x.unsqueeze(0) for x in (q, k, v, g, beta)),
        num_householder=1,
        scale=scale,
        initial_state=initial_states,
        output_final_state=return_final_states,
        use_qk_l2norm_in_kernel=qk_l2norm,
        cu_seqlens=cu_seqlens,
    )
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)
