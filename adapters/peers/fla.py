"""flash-linear-attention: its short convolution, its rotary embedding, and simple_gla as an SSD.

`fla_linear` has its linear attention and delta rules, `fla_losses` its losses.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional

from packproof.adapters.peers.fla_linear import (
    delta_rule,
    delta_rule_recurrent,
    gated_delta_rule,
    gated_delta_rule_recurrent,
    kda,
    kda_recurrent,
    kda_update,
    kda_verify,
    linear_attention,
    linear_attention_recurrent,
    retention,
    retention_recurrent,
    simple_gla,
    simple_gla_recurrent,
)
from packproof.adapters.peers.fla_losses import cross_entropy, kl_divergence, linear_cross_entropy, token_logprobs
from packproof.adapters.peers.start_positions import with_nonnegative_starts
from packproof.properties.declarations import Promises, kernel

__all__ = [
    "causal_conv1d",
    "cross_entropy",
    "delta_rule",
    "delta_rule_recurrent",
    "gated_delta_rule",
    "gated_delta_rule_recurrent",
    "kda",
    "kda_recurrent",
    "kda_update",
    "kda_verify",
    "kl_divergence",
    "linear_attention",
    "linear_attention_recurrent",
    "linear_cross_entropy",
    "retention",
    "retention_recurrent",
    "rope",
    "rope_qk",
    "simple_gla",
    "simple_gla_recurrent",
    "ssd",
    "token_logprobs",
]


# The pre-activation is rounded to the dtype of x before the backward pass.
@kernel(op="causal_conv1d", promises=Promises(compute="operand"), float32=("weight", "bias"), slack=False)
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """fla's states hold w inputs and the first one is never read. The op's states hold the other w - 1."""
    from fla.modules.causal_conv1d.ops import causal_conv1d as convolve  # noqa: PLC0415

    padded_states = None if initial_states is None else functional.pad(initial_states, (1, 0))
    y, states = convolve(
        x.unsqueeze(0),
        weight,
        bias,
        initial_state=padded_states,
        output_final_state=return_final_states,
        activation=activation,
        backend="triton",
        cu_seqlens=cu_seqlens,
    )
    return (y.squeeze(0), states[..., 1:]) if return_final_states else y.squeeze(0)


@kernel(op="rope", domain="k <= 256", slack=False)
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """The tables get rows for positions below 0, since fla returns zeros there.

    Start positions are always passed: without them it requires tables as long as the pack.
    """
    from fla.modules.rotary import rotary_embedding  # noqa: PLC0415

    cos, sin, starts = with_nonnegative_starts(cos, sin, offsets, cu_seqlens)
    y: Tensor = rotary_embedding(
        x.unsqueeze(0), cos, sin, interleaved=interleaved, seqlen_offsets=starts, cu_seqlens=cu_seqlens
    )
    return y.squeeze(0)


@kernel(op="rope_qk", domain="k <= 256", slack=False)
def rope_qk(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two calls of its rotary embedding."""
    y_q, y_k = (rope(x, cos, sin, offsets, cu_seqlens=cu_seqlens, interleaved=interleaved) for x in (q, k))
    return y_q, y_k


@kernel(
    op="ssd",
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    domain="n % 2 == 0; p % 2 == 0; gate > -1e4",  # backward requires both even; gates are differences of a running sum
    refuses=("Please upgrade Triton",),  # its gated backward pass on Hopper: then its values are judged
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
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    dt_softplus: bool = False,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """simple_gla with queries C, keys B, values dt x and gates dt A; its states are (n, p).

    The skip, the gate z and softplus are computed by torch.
    """
    from fla.ops.simple_gla import chunk_simple_gla  # noqa: PLC0415

    step = dt.float() if dt_bias is None else dt.float() + dt_bias
    step = functional.softplus(step) if dt_softplus else step
    B, C = (v.repeat_interleave(x.shape[1] // v.shape[1], 1) for v in (B, C))
    values = (step[..., None] * x).to(x.dtype)
    q, k, v, g = (tensor.unsqueeze(0) for tensor in (C, B, values, step * A))
    state_arguments: dict[str, Any] = (
        {} if initial_states is None else {"initial_state": initial_states.mT.contiguous()}
    )
    y, states = chunk_simple_gla(
        q, k, v, g=g, scale=1.0, cu_seqlens=cu_seqlens, output_final_state=return_final_states, **state_arguments
    )
    result: Tensor = y.squeeze(0).float()
    if D is not None:
        result = result + (D if D.ndim == 2 else D[:, None]) * x
    if z is not None:
        result = result * functional.silu(z.float())
    result = result.to(x.dtype)
    return (result, states.mT.contiguous()) if return_final_states else result
