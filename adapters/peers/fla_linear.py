"""flash-linear-attention: linear attention, its gated forms and the delta rules, in chunks and token by token.

Retention and lightning attention are its simple_gla with `g_gamma`, a constant of each head without a gradient. Chunks
start with each sequence; states are (k, v), gates natural logarithms.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

from packproof.adapters import Batched, adapt
from packproof.adapters.adapter import Adapter
from packproof.properties.declaration import kernel
from packproof.properties.promises import Promises

_SIMPLE_GLA = "fla.ops.simple_gla:"
_LINEAR = "fla.ops.linear_attn:"
_DELTA = "fla.ops.delta_rule:"
_NAMES = {"initial_states": "initial_state", "return_final_states": "output_final_state"}
_NORM = {"qk_l2norm": "use_qk_l2norm_in_kernel"}
_SIXTEEN_BITS = ("bfloat16", "float16")  # its products round operands of fp32 to tf32, or it refuses them
_IN_CHUNKS = Promises(chunk=64, cumsum=True, compute="operand")
_REFUSALS = ("Please upgrade Triton",)  # its gated backward pass on Hopper: then its values are judged
_ONE_HEAD_EACH = "hk == hv"
_EVEN = "k % 2 == 0; p % 2 == 0"  # its backward pass requires both even
_WEAK = "gate > -1e4"  # sums of gates are differences of one running sum, in fp32


def _adapted(target: str, op: str, *domain: str, names: dict[str, str] | None = None, **declared: Any) -> Adapter:
    names = _NAMES | (names or {})
    return adapt(target, op=op, tokens=Batched(), names=names, slack=False, domain="; ".join(domain), **declared)


def _in_chunks(target: str, op: str, *domain: str, **declared: Any) -> Adapter:
    declared = {"dtypes": _SIXTEEN_BITS, "promises": _IN_CHUNKS, "refuses": _REFUSALS, **declared}
    return _adapted(target, op, *domain, **declared)


linear_attention = _in_chunks(
    _LINEAR + "chunk_linear_attn", "linear_attention", _ONE_HEAD_EACH, _EVEN, given={"normalize": False}
)
linear_attention_recurrent = _adapted(
    _LINEAR + "fused_recurrent_linear_attn", "linear_attention", _ONE_HEAD_EACH, given={"normalize": False}
)
simple_gla = _in_chunks(_SIMPLE_GLA + "chunk_simple_gla", "simple_gla", _ONE_HEAD_EACH, _EVEN, _WEAK, float32=("g",))
simple_gla_recurrent = _adapted(
    _SIMPLE_GLA + "fused_recurrent_simple_gla",
    "simple_gla",
    _ONE_HEAD_EACH,
    _WEAK,
    float32=("g",),
    promises=Promises(cumsum=True, compilable=True),  # its gradient of g is a sum over the sequence
)
retention = _in_chunks(
    _SIMPLE_GLA + "chunk_simple_gla", "retention", _ONE_HEAD_EACH, _WEAK, names={"decay": "g_gamma"}, gradients=False
)
retention_recurrent = _adapted(
    _SIMPLE_GLA + "fused_recurrent_simple_gla", "retention", _ONE_HEAD_EACH, names={"decay": "g_gamma"}, gradients=False
)
delta_rule = _in_chunks(
    _DELTA + "chunk_delta_rule", "delta_rule", _ONE_HEAD_EACH, "k <= 256", names=_NORM, float32=("beta",)
)
delta_rule_recurrent = _adapted(
    _DELTA + "fused_recurrent_delta_rule",
    "delta_rule",
    _ONE_HEAD_EACH,
    names=_NORM,
    float32=("beta",),
    promises=Promises(compilable=True),
)


def _gated(
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


def _rule(op: str, module: str, function: str, **declared: Any) -> Callable[..., Any]:
    """The adapter of a delta rule with a gate."""

    @kernel(op=op, domain=f"k <= 256; {_WEAK}", slack=False, float32=("g", "beta"), **declared)
    def adapted(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
        dt_bias: Tensor | None = None, initial_states: Tensor | None = None, *, cu_seqlens: Tensor,
        scale: float | None = None, qk_l2norm: bool = False, beta_sigmoid: bool = False,
        return_final_states: bool = False,
    ) -> Any:  # fmt: skip
        rule = getattr(import_module(module), function)
        options = {"scale": scale, "qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid}
        options |= {"return_final_states": return_final_states}
        return _gated(rule, (q, k, v, g, beta), A_log, dt_bias, initial_states, cu_seqlens, options)

    return adapted


_CHUNKED: dict[str, Any] = {"dtypes": _SIXTEEN_BITS, "promises": _IN_CHUNKS, "refuses": _REFUSALS}
gated_delta_rule = _rule("gated_delta_rule", "fla.ops.gated_delta_rule", "chunk_gated_delta_rule", **_CHUNKED)
kda = _rule("kda", "fla.ops.kda", "chunk_kda", **_CHUNKED)
# token by token, for serving: neither has a backward pass
gated_delta_rule_recurrent = _rule(
    "gated_delta_rule", "fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule", gradients=False
)
kda_recurrent = _rule("kda", "fla.ops.kda", "fused_recurrent_kda", gradients=False)
