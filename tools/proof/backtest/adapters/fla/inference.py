"""flash-linear-attention: the gated delta rule in inference, with long sequences split on one card."""

import os
from unittest.mock import patch

import torch
from torch import Tensor

from packproof.properties.declarations import Promises, kernel


@kernel(
    op="gated_delta_rule",
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    domain="hk == hv; k <= 256; gate > -1e4",  # sums of gates are differences of one running sum, in fp32
    slack=False,
    gradients=False,
    float32=("g", "beta"),
)
def split_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    with patch.dict(os.environ, {"FLA_INTRACARD_CP": "1"}), torch.inference_mode():
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # noqa: PLC0415

        y, states = chunk_gated_delta_rule(
            *(x.unsqueeze(0) for x in (q, k, v)),
            g=g.unsqueeze(0),
            beta=beta.unsqueeze(0),
            scale=scale,
            initial_state=initial_states,
            output_final_state=return_final_states,
            cu_seqlens=cu_seqlens,
        )
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)
