"""FlashInfer: the gated delta rule for prefill, without a backward pass; `flashinfer_paged` has its attention."""

from typing import Any

import torch
from torch import Tensor

from packproof.adapters.peers.flashinfer_paged import attention_decode, attention_prefill
from packproof.properties.declarations import Promises, kernel

__all__ = ["attention_decode", "attention_prefill", "gated_delta_rule"]


@kernel(
    op="gated_delta_rule",
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    gradients=False,
    domain="k == 128; p == 128; gate > -1e4",  # decays are differences of a running sum
    slack=False,
    float32=("g", "beta"),
)
def gated_delta_rule(
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
    """Its gate is exp(g); gate and beta are fp32. States are (p, k), and the caller allocates the final ones."""
    from flashinfer.gdn_prefill import chunk_gated_delta_rule  # noqa: PLC0415

    q, k, v = (x.contiguous() for x in (q, k, v))
    shape = (len(cu_seqlens) - 1, v.shape[1], v.shape[2], k.shape[2])
    final_states = v.new_empty(shape, dtype=torch.float32) if return_final_states else None
    result = chunk_gated_delta_rule(
        q,
        k,
        v,
        g=g.float().exp(),
        beta=beta.float(),
        scale=scale,
        initial_state=None if initial_states is None else initial_states.mT.contiguous(),
        output_final_state=return_final_states,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=qk_l2norm,
        output_state=final_states,
    )
    return (result[0], result[1].mT.contiguous()) if return_final_states else result
