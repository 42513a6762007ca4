"""The signatures of packproof's ops: the only place to declare the axes of their tensors.

`packproof.base.arguments` has the noun of each axis, for error messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from packproof.base.axes import Axis, parse, read_axis

_FLAG = (False, True)


@dataclass(frozen=True)
class Signature:
    """The arguments and results of an op, declared once for its reference, its kernels and its properties.

    The first input is the leader: its dtype, device and number of tokens (axis t) hold for the other inputs.
    """

    op: str
    """Name of the op."""
    inputs: Mapping[str, str]
    """Axes of each input by name, in the order of the arguments. `packproof.base.axes` has the grammar."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Axes of each output by name, in the order of the results."""
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The possible values of each option, the plainest first. Options with other values (numbers) are not listed."""
    fixed: frozenset[str] = frozenset()
    """Tensors in fp32, or in fp64 with an fp64 leader."""
    tables: frozenset[str] = frozenset()
    """Inputs in the leader's dtype or fp32."""
    integers: frozenset[str] = frozenset()
    """Inputs in int32 or int64."""
    float32: frozenset[str] = frozenset()
    """Inputs in the leader's dtype, or in fp32 beside a bf16 or fp16 leader."""
    narrow: frozenset[str] = frozenset()
    """Fixed inputs also allowed in the leader's dtype if it is bf16 or fp16, and in bf16 or fp16 if it is fp32."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Axes over which another axis splits evenly: {"g": "h"} for heads in groups."""
    forms: Mapping[str, "Forms"] = field(init=False, repr=False)
    """The forms of each input, parsed."""
    shifted: tuple[Axis, ...] = field(init=False, repr=False)
    """The axes of inputs with a shift, such as w-1."""

    def __post_init__(self) -> None:
        forms = {name: _parse_forms(spec) for name, spec in self.inputs.items()}
        all_axes = (axis for form in forms.values() for axes in form.by_ndim.values() for axis in axes)
        object.__setattr__(self, "forms", forms)
        object.__setattr__(self, "shifted", tuple(dict.fromkeys(axis for axis in all_axes if axis.shift)))


class Forms(NamedTuple):
    """The possible forms of an input."""

    by_ndim: Mapping[int, tuple[Axis, ...]]
    """Its axes, by their number."""
    optional: bool
    """Whether it may be absent."""


def _parse_forms(spec: str) -> Forms:
    parsed = parse(spec)
    return Forms({len(axes): tuple(map(read_axis, axes)) for axes in parsed.alternatives}, parsed.optional)


CAUSAL_CONV1D = Signature(
    op="causal_conv1d",
    inputs={"x": "t d", "weight": "d w", "bias": "d?", "initial_states": "s d w-1?"},
    outputs={"y": "t d", "final_states": "s d w-1?"},
    options={"activation": (None, "silu"), "return_final_states": _FLAG},
    float32=frozenset({"weight", "bias", "initial_states"}),
)

SELECTIVE_SCAN = Signature(
    op="selective_scan",
    inputs={
        "u": "t d",
        "delta": "t d",
        "A": "d n",
        "B": "t n | t g n",
        "C": "t n | t g n",
        "D": "d?",
        "z": "t d?",
        "delta_bias": "d?",
        "initial_states": "s d n?",
    },
    outputs={"y": "t d", "final_states": "s d n?"},
    options={"delta_softplus": _FLAG, "return_final_states": _FLAG},
    fixed=frozenset({"A", "D", "delta_bias", "initial_states", "final_states"}),
    narrow=frozenset({"A", "D", "delta_bias"}),
    groups={"g": "d"},
)

SSD = Signature(
    op="ssd",
    inputs={
        "x": "t h p",
        "dt": "t h",
        "A": "h",
        "B": "t g n",
        "C": "t g n",
        "D": "h | h p?",
        "z": "t h p?",
        "dt_bias": "h?",
        "initial_states": "s h p n?",
    },
    outputs={"y": "t h p", "final_states": "s h p n?"},
    options={"dt_softplus": _FLAG, "return_final_states": _FLAG},
    fixed=frozenset({"A", "D", "dt_bias", "initial_states", "final_states"}),
    narrow=frozenset({"A", "D", "dt_bias"}),
    groups={"g": "h"},
)

# axes of the inputs of a step, one token without a pack; groups are expanded to channels or heads
SELECTIVE_SCAN_STEP = {"h": "d n", "u": "d", "delta": "d", "A": "d n", "B": "n | 1 n | d n", "C": "n | 1 n | d n"}
SSD_STEP = {"h": "h p n", "x": "h p", "dt": "h", "A": "h", "B": "h n", "C": "h n"}

ROPE = Signature(
    op="rope",
    inputs={"x": "t h k", "cos": "m r", "sin": "m r", "offsets": "s?"},
    outputs={"y": "t h k"},
    options={"interleaved": _FLAG},
    tables=frozenset({"cos", "sin"}),
    integers=frozenset({"offsets"}),
)

ROPE_QK = Signature(
    op="rope_qk",
    inputs={"q": "t hq k", "k": "t hk k", "cos": "m r", "sin": "m r", "offsets": "s?"},
    outputs={"y_q": "t hq k", "y_k": "t hk k"},
    options={"interleaved": _FLAG},
    tables=frozenset({"cos", "sin"}),
    integers=frozenset({"offsets"}),
)

HADAMARD = Signature(
    op="hadamard",
    inputs={"x": "t h k", "signs": "k?"},
    outputs={"y": "t h k"},
    tables=frozenset({"signs"}),
)

ROPE_HADAMARD = Signature(
    op="rope_hadamard",
    inputs={"x": "t h k", "cos": "m r", "sin": "m r", "signs": "k?", "offsets": "s?"},
    outputs={"y": "t h k"},
    options={"interleaved": _FLAG},
    tables=frozenset({"cos", "sin", "signs"}),
    integers=frozenset({"offsets"}),
)

QUANTIZE_FP8 = Signature(op="quantize_fp8", inputs={"x": "t h k"})  # no outputs: fp8 is not a dtype of ops
ROUND_FP8 = Signature(op="round_fp8", inputs={"x": "t h k"}, outputs={"y": "t h k"})
QUANTIZE_BLOCKS = Signature(
    op="quantize_blocks",
    inputs={"x": "t d"},
    outputs={"values": "t d", "scales": "t d"},
    options={"block_format": ("mxfp8", "mxfp8_up", "mxfp4", "nvfp4", "fp8"), "along": ("rows", "columns", "squares")},
    fixed=frozenset({"scales"}),
)

ATTENTION = Signature(
    op="attention",
    inputs={"q": "t hq k", "k": "u hk k", "v": "u hk v", "sinks": "hq?"},
    outputs={"y": "t hq v", "lse": "t hq?"},
    options={"causal": _FLAG, "return_lse": _FLAG},
    fixed=frozenset({"lse"}),
    groups={"hk": "hq"},
)

# the linear family: value head j reads key head j // (hv // hk)
_LINEAR = {"q": "t hk k", "k": "t hk k", "v": "t hv p"}
_LINEAR_STATES = {"initial_states": "s hv k p?"}
_LINEAR_OUTPUTS = {"y": "t hv p", "final_states": "s hv k p?"}
_STATES = frozenset({"initial_states", "final_states"})

LINEAR_ATTENTION = Signature(
    op="linear_attention",
    inputs={**_LINEAR, **_LINEAR_STATES},
    outputs=_LINEAR_OUTPUTS,
    options={"return_final_states": _FLAG},
    fixed=_STATES,
    groups={"hk": "hv"},
)

SIMPLE_GLA = Signature(
    op="simple_gla",
    inputs={**_LINEAR, "g": "t hv", **_LINEAR_STATES},
    outputs=_LINEAR_OUTPUTS,
    options={"return_final_states": _FLAG},
    fixed=_STATES,
    float32=frozenset({"g"}),
    groups={"hk": "hv"},
)

RETENTION = Signature(
    op="retention",
    inputs={**_LINEAR, "decay": "hv", **_LINEAR_STATES},
    outputs=_LINEAR_OUTPUTS,
    options={"return_final_states": _FLAG},
    fixed=_STATES | {"decay"},
    groups={"hk": "hv"},
)

DELTA_RULE = Signature(
    op="delta_rule",
    inputs={**_LINEAR, "beta": "t hv", **_LINEAR_STATES},
    outputs=_LINEAR_OUTPUTS,
    options={"qk_l2norm": _FLAG, "beta_sigmoid": _FLAG, "return_final_states": _FLAG},
    fixed=_STATES,
    float32=frozenset({"beta"}),
    groups={"hk": "hv"},
)

GATED_DELTA_RULE = Signature(
    op="gated_delta_rule",
    inputs={**_LINEAR, "g": "t hv", "beta": "t hv", "A_log": "hv?", "dt_bias": "hv?", **_LINEAR_STATES},
    outputs=_LINEAR_OUTPUTS,
    options={"qk_l2norm": _FLAG, "beta_sigmoid": _FLAG, "return_final_states": _FLAG},
    fixed=_STATES | {"A_log", "dt_bias"},
    float32=frozenset({"g", "beta"}),
    groups={"hk": "hv"},
)

KDA = Signature(
    op="kda",
    inputs={
        "q": "t h k",
        "k": "t h k",
        "v": "t h p",
        "g": "t h k",
        "beta": "t h",
        "A_log": "h?",
        "dt_bias": "h k?",
        "initial_states": "s h k p?",
    },
    outputs={"y": "t h p", "final_states": "s h k p?"},
    options={"qk_l2norm": _FLAG, "beta_sigmoid": _FLAG, "return_final_states": _FLAG},
    fixed=_STATES | {"A_log", "dt_bias"},
    float32=frozenset({"g", "beta"}),
)

_LINEAR_STEP = {"S": "h k p", "q": "h k", "k": "h k", "v": "h p"}
LINEAR_ATTENTION_STEP = _LINEAR_STEP
SIMPLE_GLA_STEP = {**_LINEAR_STEP, "g": "h"}
RETENTION_STEP = {**_LINEAR_STEP, "decay": "h"}
DELTA_RULE_STEP = {**_LINEAR_STEP, "beta": "h"}
GATED_DELTA_RULE_STEP = {**_LINEAR_STEP, "g": "h", "beta": "h"}
KDA_STEP = {**_LINEAR_STEP, "g": "h k", "beta": "h"}


def pool_signature(signature: Signature) -> Signature:
    """The signature of an op on a pool: each sequence has the tokens of one request, with its state in a slot."""
    state = signature.inputs["initial_states"].rstrip("?").removeprefix("s ")
    inputs = {name: spec for name, spec in signature.inputs.items() if name != "initial_states"}
    fixed = signature.fixed - _STATES
    return Signature(
        op=f"{signature.op}_update",
        inputs={**inputs, "states": f"c {state}", "state_indices": "s"},
        outputs={"y": signature.outputs["y"], "new_states": f"c {state}"},
        options={name: values for name, values in signature.options.items() if name != "return_final_states"},
        fixed=fixed if fixed == signature.fixed else fixed | {"states", "new_states"},
        integers=frozenset({"state_indices"}),
        float32=signature.float32 - _STATES,
        narrow=signature.narrow,
        groups=signature.groups,
    )


def verify_signature(signature: Signature) -> Signature:
    """The signature of an op on a pool that holds the state after each draft of a step; some drafts are rejected.

    A slot has a state for each of a drafts. The windows of a convolution overlap: a slot has one row of inputs.
    """
    pool = pool_signature(signature)
    state = pool.inputs["states"].removeprefix("c ")
    drafts = "c d w+a-2" if state == "d w-1" else f"c a {state}"
    return replace(
        pool,
        op=f"{signature.op}_verify",
        inputs={**pool.inputs, "states": drafts, "num_accepted_tokens": "s"},
        outputs={**pool.outputs, "new_states": drafts},
        integers=pool.integers | {"num_accepted_tokens"},
    )


CAUSAL_CONV1D_UPDATE = pool_signature(CAUSAL_CONV1D)
SELECTIVE_SCAN_UPDATE = pool_signature(SELECTIVE_SCAN)
SSD_UPDATE = pool_signature(SSD)
GATED_DELTA_RULE_UPDATE = pool_signature(GATED_DELTA_RULE)
KDA_UPDATE = pool_signature(KDA)
CAUSAL_CONV1D_VERIFY = verify_signature(CAUSAL_CONV1D)
SELECTIVE_SCAN_VERIFY = verify_signature(SELECTIVE_SCAN)
SSD_VERIFY = verify_signature(SSD)
GATED_DELTA_RULE_VERIFY = verify_signature(GATED_DELTA_RULE)
KDA_VERIFY = verify_signature(KDA)

CACHE_WRITE = Signature(
    op="cache_write",
    inputs={"k": "t h k", "v": "t h v", "k_cache": "c h k", "v_cache": "c h v", "slot_mapping": "t"},
    outputs={"new_k_cache": "c h k", "new_v_cache": "c h v"},
    integers=frozenset({"slot_mapping"}),
)

_LABELS = frozenset({"labels"})

CROSS_ENTROPY = Signature(
    op="cross_entropy",
    inputs={"logits": "t nv", "labels": "t"},
    outputs={"loss": ""},
    options={"shift": _FLAG},
    fixed=frozenset({"loss"}),
    integers=_LABELS,
)
CROSS_ENTROPY_SUM = replace(CROSS_ENTROPY, op="cross_entropy_sum")
CROSS_ENTROPY_SEQUENCES = replace(CROSS_ENTROPY, op="cross_entropy_sequences", outputs={"loss": "s"})
LINEAR_CROSS_ENTROPY = replace(
    CROSS_ENTROPY, op="linear_cross_entropy", inputs={"x": "t d", "weight": "nv d", "labels": "t"}
)
TOKEN_LOGPROBS = replace(CROSS_ENTROPY, op="token_logprobs", outputs={"logprobs": "t"}, fixed=frozenset({"logprobs"}))
TOKEN_ENTROPY = Signature(
    op="token_entropy", inputs={"logits": "t nv"}, outputs={"entropy": "t"}, fixed=frozenset({"entropy"})
)
KL_DIVERGENCE = Signature(
    op="kl_divergence",
    inputs={"logits": "t nv", "other_logits": "t nv"},
    outputs={"kl": "t"},
    fixed=frozenset({"kl"}),
)

_RESPONSES = {"logprobs": "t", "old_logprobs": "t", "advantages": "s", "mask": "t", "ref_logprobs": "t?"}
POLICY_LOSS = Signature(
    op="policy_loss",
    inputs=_RESPONSES,
    outputs={"loss": ""},
    options={"sequence_ratio": _FLAG},
    fixed=frozenset({"loss"}),
    tables=frozenset({"old_logprobs", "advantages", "ref_logprobs"}),
    integers=frozenset({"mask"}),
)
POLICY_LOSS_SEQUENCES = replace(
    POLICY_LOSS, op="policy_loss_sequences", options={**POLICY_LOSS.options, "length_norm": (True, False)}
)
DPO_LOSS = Signature(
    op="dpo_loss",
    inputs={"logprobs": "t", "ref_logprobs": "t", "mask": "t", "chosen_lengths": "s"},
    outputs={"losses": "s"},
    fixed=frozenset({"losses"}),
    tables=frozenset({"ref_logprobs"}),
    integers=frozenset({"mask", "chosen_lengths"}),
)
MULTI_TOKEN_CROSS_ENTROPY = Signature(
    op="multi_token_cross_entropy",
    inputs={"logits": "t h nv", "labels": "t"},
    outputs={"losses": "h"},
    fixed=frozenset({"losses"}),
    integers=_LABELS,
)
ROUTER_LOAD = Signature(
    op="router_load", inputs={"logits": "t e", "mask": "t?"}, outputs={"load": "e"}, fixed=frozenset({"load"}),
    integers=frozenset({"mask"}),
)  # fmt: skip
_SCORES = {"scores": ("softmax", "sigmoid")}
ROUTER_BALANCE_LOSS_PACK = Signature(
    op="router_balance_loss_pack",
    inputs={"logits": "t e", "load": "e", "mask": "t?"},
    outputs={"loss": ""},
    options=_SCORES,
    fixed=frozenset({"loss"}),
    tables=frozenset({"load"}),
    integers=frozenset({"mask"}),
)
ROUTER_BALANCE_LOSS_SEQUENCES = Signature(
    op="router_balance_loss_sequences",
    inputs={"logits": "t e", "mask": "t?"},
    outputs={"losses": "s"},
    options=_SCORES,
    fixed=frozenset({"losses"}),
    integers=frozenset({"mask"}),
)
ROUTER_Z_LOSS = Signature(
    op="router_z_loss", inputs={"logits": "t e", "mask": "t?"}, outputs={"loss": ""}, fixed=frozenset({"loss"}),
    integers=frozenset({"mask"}),
)  # fmt: skip

GROUPED_MM = Signature(op="grouped_mm", inputs={"x": "t d", "weight": "s d f", "bias": "s f?"}, outputs={"y": "t f"})
SCALED_GROUPED_MM = Signature(
    op="scaled_grouped_mm",
    inputs={"x": "t d", "x_scales": "t b", "weight": "s d f", "weight_scales": "s b bf", "alpha": "s?"},
    outputs={"y": "t f"},
    options={"block_format": ("mxfp4", "mxfp8", "nvfp4", "fp8")},
    fixed=frozenset({"x_scales", "weight_scales", "alpha"}),
    groups={"b": "d"},
)
MIXTURE_OF_EXPERTS = Signature(
    op="mixture_of_experts",
    inputs={"x": "t d", "logits": "t e", "w_gate": "e d f", "w_up": "e d f", "w_down": "e f d"},
    outputs={"y": "t d"},
    options={"normalize": _FLAG},
    float32=frozenset({"logits"}),
)
DISPATCH_COMBINE = Signature(
    op="dispatch_combine",
    inputs={"x": "t d", "logits": "t e", "gain": "e d"},
    outputs={"y": "t d"},
    options={"normalize": _FLAG},
    float32=frozenset({"logits"}),
)

SIGNATURES: Mapping[str, Signature] = {
    signature.op: signature
    for signature in (
        *(CAUSAL_CONV1D, SELECTIVE_SCAN, SSD, ROPE, ROPE_QK, HADAMARD, ROPE_HADAMARD, ROUND_FP8, ATTENTION),
        *(LINEAR_ATTENTION, SIMPLE_GLA, RETENTION, DELTA_RULE, GATED_DELTA_RULE, KDA),
        *(CAUSAL_CONV1D_UPDATE, SELECTIVE_SCAN_UPDATE, SSD_UPDATE, GATED_DELTA_RULE_UPDATE, KDA_UPDATE),
        *(CAUSAL_CONV1D_VERIFY, SELECTIVE_SCAN_VERIFY, SSD_VERIFY, GATED_DELTA_RULE_VERIFY, KDA_VERIFY),
        CACHE_WRITE,
        *(CROSS_ENTROPY, CROSS_ENTROPY_SUM, CROSS_ENTROPY_SEQUENCES, LINEAR_CROSS_ENTROPY),
        *(TOKEN_LOGPROBS, TOKEN_ENTROPY, KL_DIVERGENCE, MULTI_TOKEN_CROSS_ENTROPY),
        *(POLICY_LOSS, POLICY_LOSS_SEQUENCES, DPO_LOSS),
        *(ROUTER_LOAD, ROUTER_BALANCE_LOSS_PACK, ROUTER_BALANCE_LOSS_SEQUENCES, ROUTER_Z_LOSS),
        *(GROUPED_MM, SCALED_GROUPED_MM, MIXTURE_OF_EXPERTS, DISPATCH_COMBINE, QUANTIZE_BLOCKS),
    )
}
