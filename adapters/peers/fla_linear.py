"""flash-linear-attention: linear attention, its gated forms and the delta rules, in chunks and token by token.

Retention and lightning attention are its simple_gla with `g_gamma`, a constant of each head without a gradient. Chunks
start with each sequence; states are (k, v), gates natural logarithms.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import Batched, SlotPerDraft, adapt
from packproof.adapters.adapter import Adapter
from packproof.properties.declarations import Promises, kernel

_SIMPLE_GLA = "fla.ops.simple_gla:"
_LINEAR = "fla.ops.linear_attn:"
_DELTA = "fla.ops.delta_rule:"
_NAMES = {"initial_states": "initial_state", "return_final_states": "output_final_state"}
_L2NORM_NAME = {"qk_l2norm": "use_qk_l2norm_in_kernel"}
_SIXTEEN_BITS = ("bfloat16", "float16")  # its products round operands of fp32 to tf32, or it refuses them
_CHUNKED_PROMISES = Promises(chunk=64, cumsum=True, compute="operand")
_REFUSALS = ("Please upgrade Triton",)  # its gated backward pass on Hopper: then its values are judged
_EQUAL_HEADS = "hk == hv"
_EVEN_CHANNELS = "k % 2 == 0; p % 2 == 0"  # its backward pass requires both even
_WEAK_GATES = "gate > -1e4"  # sums of gates are differences of one running sum, in fp32


def _adapt_linear(
    target: str, op: str, *domain: str, names: dict[str, str] | None = None, **declaration: Any
) -> Adapter:
    names = _NAMES | (names or {})
    return adapt(target, op=op, tokens=Batched(), names=names, slack=False, domain="; ".join(domain), **declaration)


def _adapt_chunked(target: str, op: str, *domain: str, **declaration: Any) -> Adapter:
    declaration = {"dtypes": _SIXTEEN_BITS, "promises": _CHUNKED_PROMISES, "refuses": _REFUSALS, **declaration}
    return _adapt_linear(target, op, *domain, **declaration)


linear_attention = _adapt_chunked(
    _LINEAR + "chunk_linear_attn", "linear_attention", _EQUAL_HEADS, _EVEN_CHANNELS, given={"normalize": False}
)
linear_attention_recurrent = _adapt_linear(
    _LINEAR + "fused_recurrent_linear_attn", "linear_attention", _EQUAL_HEADS, given={"normalize": False}
)
simple_gla = _adapt_chunked(
    _SIMPLE_GLA + "chunk_simple_gla", "simple_gla", _EQUAL_HEADS, _EVEN_CHANNELS, _WEAK_GATES, float32=("g",)
)
simple_gla_recurrent = _adapt_linear(
    _SIMPLE_GLA + "fused_recurrent_simple_gla",
    "simple_gla",
    _EQUAL_HEADS,
    _WEAK_GATES,
    float32=("g",),
    promises=Promises(cumsum=True, compilable=True),  # its gradient of g is a sum over the sequence
)
retention = _adapt_chunked(
    _SIMPLE_GLA + "chunk_simple_gla",
    "retention",
    _EQUAL_HEADS,
    _WEAK_GATES,
    names={"decay": "g_gamma"},
    gradients=False,
)
retention_recurrent = _adapt_linear(
    _SIMPLE_GLA + "fused_recurrent_simple_gla", "retention", _EQUAL_HEADS, names={"decay": "g_gamma"}, gradients=False
)
delta_rule = _adapt_chunked(
    _DELTA + "chunk_delta_rule", "delta_rule", _EQUAL_HEADS, "k <= 256", names=_L2NORM_NAME, float32=("beta",)
)
delta_rule_recurrent = _adapt_linear(
    _DELTA + "fused_recurrent_delta_rule",
    "delta_rule",
    _EQUAL_HEADS,
    names=_L2NORM_NAME,
    float32=("beta",),
    promises=Promises(compilable=True),
)


def _call_gated_rule(
    rule: Callable[..., Any], tokens: tuple[Tensor, ...], A_log: Tensor | None, dt_bias: Tensor | None,
    states: Tensor | None, cu_seqlens: Tensor, options: dict[str, Any],
) -> Any:  # fmt: skip
    """Call a rule. With A_log it computes the gate itself; a bias without A_log is added to g before the call."""
    q, k, v, g, beta = tokens
    gate: dict[str, Any] = {}
    if A_log is not None:
        bias = None if dt_bias is None else dt_bias.flatten()
        gate = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": bias}
    elif dt_bias is not None:
        g = g.float() + dt_bias
    q, k, v, g, beta = (x.unsqueeze(0) for x in (q, k, v, g, beta))
    y, final = rule(
        q, k, v,
        g=g, beta=beta, scale=options["scale"], initial_state=states, cu_seqlens=cu_seqlens,
        output_final_state=options["return_final_states"], use_qk_l2norm_in_kernel=options["qk_l2norm"],
        use_beta_sigmoid_in_kernel=options["beta_sigmoid"], **gate,
    )  # fmt: skip
    return (y.squeeze(0), final) if options["return_final_states"] else y.squeeze(0)


def _gated_rule_adapter(op: str, module: str, function: str, **declaration: Any) -> Callable[..., Any]:
    """The adapter of a delta rule with a gate."""

    @kernel(op=op, domain=f"k <= 256; {_WEAK_GATES}", slack=False, float32=("g", "beta"), **declaration)
    def call_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
        dt_bias: Tensor | None = None, initial_states: Tensor | None = None, *, cu_seqlens: Tensor,
        scale: float | None = None, qk_l2norm: bool = False, beta_sigmoid: bool = False,
        return_final_states: bool = False,
    ) -> Any:  # fmt: skip
        rule = getattr(import_module(module), function)
        options = {"scale": scale, "qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid}
        options |= {"return_final_states": return_final_states}
        return _call_gated_rule(rule, (q, k, v, g, beta), A_log, dt_bias, initial_states, cu_seqlens, options)

    return call_rule


_CHUNKED_DECLARATION: dict[str, Any] = {"dtypes": _SIXTEEN_BITS, "promises": _CHUNKED_PROMISES, "refuses": _REFUSALS}
gated_delta_rule = _gated_rule_adapter(
    "gated_delta_rule", "fla.ops.gated_delta_rule", "chunk_gated_delta_rule", **_CHUNKED_DECLARATION
)
kda = _gated_rule_adapter("kda", "fla.ops.kda", "chunk_kda", **_CHUNKED_DECLARATION)
# token by token, for serving: neither has a backward pass
gated_delta_rule_recurrent = _gated_rule_adapter(
    "gated_delta_rule", "fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule", gradients=False
)
kda_recurrent = _gated_rule_adapter("kda", "fla.ops.kda", "fused_recurrent_kda", gradients=False)


def _step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, scale: float | None = None, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    states: Tensor, state_indices: Tensor, num_accepted_tokens: Tensor | None = None, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    """A step over a pool. The kernel skips no request: those without a slot get one each, past the pool."""
    if A_log is None and dt_bias is not None:
        g, dt_bias = g.float() + dt_bias, None
    requests, has_slot = len(state_indices), state_indices >= 0
    spare = torch.arange(len(states), len(states) + requests, device=states.device, dtype=state_indices.dtype)
    slots = torch.where(has_slot, state_indices, spare.view(-1, *[1] * (state_indices.ndim - 1)))
    pool = torch.cat([states, states.new_zeros(requests, *states.shape[1:])])
    y, _ = import_module("fla.ops.kda.fused_recurrent").fused_recurrent_kda_fwd(
        *(x.unsqueeze(0).contiguous() for x in (q, k, v, g, beta)), A_log, dt_bias, pool, scale,
        cu_seqlens=cu_seqlens, ssm_state_indices=slots, num_accepted_tokens=num_accepted_tokens,
        use_qk_l2norm_in_kernel=qk_l2norm, use_gate_in_kernel=A_log is not None,
        use_beta_sigmoid_in_kernel=beta_sigmoid,
    )  # fmt: skip
    states.copy_(pool[: len(states)])
    inside = (has_slot if has_slot.ndim == 1 else has_slot[:, 0]).repeat_interleave(
        cu_seqlens.diff(), output_size=len(v)
    )
    return torch.where(inside[:, None, None], y.squeeze(0), 0)


def _adapt_step(op: str, *domain: str, slots: SlotPerDraft | None = None) -> Adapter:
    return adapt(
        _step, op=op, slots=slots, in_place=("states",), slack=False, domain="; ".join(domain), float32=("g", "beta")
    )


kda_update = _adapt_step("kda_update", "length == 1", "k <= 256", _WEAK_GATES)
kda_verify = _adapt_step("kda_verify", "length <= a", "k <= 256", _WEAK_GATES, slots=SlotPerDraft())
