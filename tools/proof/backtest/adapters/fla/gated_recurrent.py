"""flash-linear-attention's gated delta rule token by token, before it had gates and sigmoids of its own."""

from typing import Any

from torch import Tensor

from packproof.properties.declarations import kernel


@kernel(op="gated_delta_rule", domain="k <= 256; gate > -1e4", slack=False, float32=("g", "beta"), gradients=False)
def gated_delta_rule_recurrent(
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
) -> Any:
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule  # noqa: PLC0415

    q, k, v, g, beta = (x.unsqueeze(0) for x in (q, k, v, g, beta))
    y, states = fused_recurrent_gated_delta_rule(
        q,
        k,
        v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_states,
        output_final_state=return_final_states,
        use_qk_l2norm_in_kernel=qk_l2norm,
        cu_seqlens=cu_seqlens,
    )
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)
