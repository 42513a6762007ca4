"""The declarations of packproof's ops."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from packproof import refs
from packproof.base import signatures
from packproof.base.errors import UsageError
from packproof.properties.bounds import (
    delta_rule,
    magnitude_of_attention,
    magnitude_of_linear_attention,
    magnitude_ops,
    rounded_attention,
    rounded_operands,
)
from packproof.properties.bounds.roundings import Roundings
from packproof.properties.ops import flops
from packproof.properties.ops.losses import LOSSES
from packproof.properties.ops.op import Op
from packproof.properties.ops.pool_ops import op_on_drafts, op_on_pool
from packproof.properties.ops.signature_op import op_of_signature


def _chunk_roundings(make: Callable[..., Any], head: str, heads: tuple[str, ...]) -> Roundings:
    return Roundings(make, heads, state=(head,), width=rounded_operands.ELEMENTS_PER_TOKEN)


CAUSAL_CONV1D = op_of_signature(
    signatures.CAUSAL_CONV1D,
    reference=refs.causal_conv1d,
    absolute=magnitude_ops.causal_conv1d,
    sizes=({"d": 3, "w": 4}, {"d": 5, "w": 2}, {"d": 130, "w": 3}, {"d": 136, "w": 4}, {"d": 2, "w": 1}),
    conditions=("d >= 1", "w >= 1"),
    model_sizes=({"d": 768, "w": 4}, {"d": 1027, "w": 3}),
    carry=("initial_states", "final_states", "return_final_states"),
    window="w",
    flops=flops.causal_conv1d,
)

SELECTIVE_SCAN = op_of_signature(
    signatures.SELECTIVE_SCAN,
    reference=refs.selective_scan,
    absolute=magnitude_ops.selective_scan,
    cumsum=magnitude_ops.selective_scan_cumsum,
    sizes=({"d": 4, "n": 3, "g": 2}, {"d": 3, "n": 1, "g": 1}, {"d": 2, "n": 5, "g": 2}, {"d": 10, "n": 11, "g": 2}),
    model_sizes=({"d": 70, "n": 16, "g": 2}, {"d": 33, "n": 64, "g": 1}, {"d": 160, "n": 16, "g": 1}),
    draws={"delta": "step|delta_softplus", "A": "decay", "delta_bias": "step"},
    carry=("initial_states", "final_states", "return_final_states"),
    flops=flops.selective_scan,
)

SSD = op_of_signature(
    signatures.SSD,
    reference=refs.ssd,
    absolute=magnitude_ops.ssd,
    cumsum=magnitude_ops.ssd_cumsum,
    operands=_chunk_roundings(rounded_operands.ssd, "h", ("g", "h")),
    sizes=(
        {"h": 2, "p": 3, "n": 4, "g": 1},
        {"h": 1, "p": 1, "n": 1, "g": 1},
        {"h": 6, "p": 19, "n": 3, "g": 2},
        {"h": 2, "p": 18, "n": 20, "g": 1},
        {"h": 2, "p": 2, "n": 17, "g": 2},
    ),
    model_sizes=(
        {"h": 2, "p": 64, "n": 128, "g": 1},
        {"h": 3, "p": 32, "n": 64, "g": 3},
        {"h": 2, "p": 80, "n": 48, "g": 1},
        {"h": 1, "p": 128, "n": 256, "g": 1},
        {"h": 4, "p": 64, "n": 16, "g": 2},
    ),
    draws={"dt": "step|dt_softplus", "A": "decay", "dt_bias": "step"},
    carry=("initial_states", "final_states", "return_final_states"),
    matmul=True,
    flops=flops.ssd,
)

ROPE = op_of_signature(
    signatures.ROPE,
    reference=refs.rope,
    absolute=magnitude_ops.rope,
    sizes=(
        {"h": 2, "k": 8, "r": 4, "m": "longest"},
        {"h": 3, "k": 11, "r": 5, "m": "rows"},
        {"h": 1, "k": 32, "r": 16, "m": "longest"},
        {"h": 3, "k": 2, "r": 1, "m": "longest"},
    ),
    conditions=("2 * r <= k",),
    model_sizes=({"h": 9, "k": 128, "r": 64, "m": "longest"}, {"h": 16, "k": 200, "r": 80, "m": "longest"}),
    draws={"cos": "unit", "sin": "unit", "offsets": "position|m"},
    saved=frozenset({"cos", "sin"}),
    flops=flops.rope,
)

ROPE_QK = op_of_signature(
    signatures.ROPE_QK,
    reference=refs.rope_qk,
    absolute=magnitude_ops.rope_qk,
    sizes=(
        {"hq": 2, "hk": 1, "k": 8, "r": 4, "m": "longest"},
        {"hq": 5, "hk": 3, "k": 11, "r": 5, "m": "rows"},
        {"hq": 1, "hk": 6, "k": 2, "r": 1, "m": "longest"},
    ),
    conditions=("2 * r <= k",),
    model_sizes=(
        {"hq": 16, "hk": 2, "k": 128, "r": 64, "m": "longest"},
        {"hq": 9, "hk": 9, "k": 200, "r": 80, "m": "longest"},
    ),
    draws={"cos": "unit", "sin": "unit", "offsets": "position|m"},
    saved=frozenset({"cos", "sin"}),
    flops=flops.rope_qk,
)

_HADAMARD_SIZES = ("k in (1, 2, 4, 8, 16, 32, 64, 128, 256)",)

HADAMARD = op_of_signature(
    signatures.HADAMARD,
    reference=refs.hadamard,
    absolute=magnitude_ops.hadamard,
    sizes=({"h": 2, "k": 8}, {"h": 3, "k": 32}, {"h": 1, "k": 1}, {"h": 5, "k": 2}, {"h": 1, "k": 64}),
    conditions=_HADAMARD_SIZES,
    model_sizes=({"h": 9, "k": 128}, {"h": 3, "k": 256}),
    draws={"signs": "sign"},
    saved=frozenset({"signs"}),
    flops=flops.hadamard,
)

ROPE_HADAMARD = op_of_signature(
    signatures.ROPE_HADAMARD,
    reference=refs.rope_hadamard,
    absolute=magnitude_ops.rope_hadamard,
    sizes=(
        {"h": 3, "k": 8, "r": 4, "m": "longest"},
        {"h": 2, "k": 16, "r": 5, "m": "rows"},
        {"h": 5, "k": 32, "r": 16, "m": "longest"},
        {"h": 3, "k": 2, "r": 1, "m": "longest"},
    ),
    conditions=("2 * r <= k", *_HADAMARD_SIZES),
    model_sizes=({"h": 9, "k": 128, "r": 64, "m": "longest"}, {"h": 3, "k": 256, "r": 128, "m": "longest"}),
    draws={"cos": "unit", "sin": "unit", "signs": "sign", "offsets": "position|m"},
    saved=frozenset({"cos", "sin", "signs"}),
    flops=flops.rope_hadamard,
)

_ROUND_FP8 = op_of_signature(
    signatures.ROUND_FP8,
    reference=refs.round_fp8,
    absolute=magnitude_ops.round_fp8,
    options={"block": (128, 16)},
    sizes=({"h": 2, "k": 8}, {"h": 1, "k": 20}, {"h": 3, "k": 1}),
    model_sizes=({"h": 4, "k": 128}, {"h": 2, "k": 96}),
    causal=False,  # a scale is that of a block
)
ROUND_FP8 = replace(_ROUND_FP8, constants=frozenset(_ROUND_FP8.inputs))

_QUANTIZE_BLOCKS = op_of_signature(
    signatures.QUANTIZE_BLOCKS,
    reference=refs.quantize_blocks,
    absolute=magnitude_ops.quantize_blocks,
    sizes=({"d": 160}, {"d": 32}, {"d": 40}, {"d": 3}, {"d": 136}),
    model_sizes=({"d": 2048}, {"d": 1000}),
    draws={"x": "octaves"},
    causal=False,  # a scale is that of a block
)
QUANTIZE_BLOCKS = replace(_QUANTIZE_BLOCKS, constants=frozenset(_QUANTIZE_BLOCKS.inputs))

ATTENTION = op_of_signature(
    signatures.ATTENTION,
    reference=refs.attention,
    absolute=magnitude_of_attention.attention,
    operands=Roundings(rounded_attention.attention, heads=("hk", "hq"), state=("hq", "u")),
    options={
        "window_size": ((-1, -1), (5, 0), (3, 2)),
        "softmax_scale": (None, 0.3),
        "softcap": (0.0, 1.5, 50.0),
    },
    sizes=(
        {"hq": 2, "hk": 1, "k": 4, "v": 3},
        {"hq": 2, "hk": 2, "k": 8, "v": 8},
        {"hq": 6, "hk": 2, "k": 8, "v": 8},
        {"hq": 1, "hk": 1, "k": 17, "v": 18},
    ),
    model_sizes=(
        {"hq": 4, "hk": 2, "k": 128, "v": 128},
        {"hq": 8, "hk": 1, "k": 64, "v": 64},
        {"hq": 2, "hk": 2, "k": 192, "v": 128},
        {"hq": 6, "hk": 2, "k": 256, "v": 256},
        {"hq": 3, "hk": 3, "k": 96, "v": 96},
    ),
    on_request={"lse": "return_lse"},
    reach="window_size",
    causal="causal",
    matmul=True,
    flops=flops.attention,
)

_CARRY = ("initial_states", "final_states", "return_final_states")
_LINEAR: dict[str, Any] = {
    "options": {"scale": (None, 0.3)},
    "sizes": (
        {"hk": 1, "hv": 2, "k": 4, "p": 3},
        {"hk": 1, "hv": 1, "k": 1, "p": 1},
        {"hk": 2, "hv": 6, "k": 3, "p": 5},
        {"hk": 2, "hv": 2, "k": 17, "p": 18},
    ),
    "carry": _CARRY,
    "matmul": True,
}
_MINIMAX = {"hk": 2, "hv": 2, "k": 128, "p": 128}
_QWEN3_NEXT = {"hk": 1, "hv": 2, "k": 128, "p": 128}
_RETNET = {"hk": 2, "hv": 2, "k": 64, "p": 128}
_KIMI_LINEAR = {"h": 2, "k": 128, "p": 128}
_DELTA_DRAWS = {"k": "direction|qk_l2norm", "beta": "share|beta_sigmoid"}
_GATE_DRAWS = {"g": "gate|A_log", "dt_bias": "decay|A_log", "A_log": "log rate"}

LINEAR_ATTENTION = op_of_signature(
    signatures.LINEAR_ATTENTION,
    reference=refs.linear_attention,
    absolute=magnitude_of_linear_attention.linear_attention,
    operands=_chunk_roundings(rounded_operands.linear_attention, "hv", ("hk", "hv")),
    model_sizes=(_MINIMAX, _RETNET),
    flops=flops.linear_attention,
    **_LINEAR,
)

SIMPLE_GLA = op_of_signature(
    signatures.SIMPLE_GLA,
    reference=refs.simple_gla,
    absolute=magnitude_of_linear_attention.simple_gla,
    operands=_chunk_roundings(rounded_operands.simple_gla, "hv", ("hk", "hv")),
    cumsum=magnitude_of_linear_attention.simple_gla_cumsum,
    model_sizes=(_MINIMAX, _RETNET),
    draws={"g": "gate"},
    neutral={"g": 0.0},
    flops=flops.linear_attention,
    **_LINEAR,
)

RETENTION = op_of_signature(
    signatures.RETENTION,
    reference=refs.retention,
    absolute=magnitude_of_linear_attention.retention,
    operands=_chunk_roundings(rounded_operands.retention, "hv", ("hk", "hv")),
    cumsum=magnitude_of_linear_attention.retention_cumsum,
    model_sizes=(_MINIMAX, _RETNET),
    draws={"decay": "gate"},
    neutral={"decay": 0.0},
    flops=flops.linear_attention,
    **_LINEAR,
)

DELTA_RULE = op_of_signature(
    signatures.DELTA_RULE,
    reference=refs.delta_rule,
    roundings=Roundings(delta_rule.delta_rule, heads=("hk", "hv"), state=("hv", "k", "p")),
    model_sizes=(_QWEN3_NEXT,),
    draws=_DELTA_DRAWS,
    neutral={"beta": 1.0},
    **_LINEAR,
)

_DELTA_ROUNDINGS = partial(Roundings, delta_rule.delta_rule, operands=delta_rule.rounded_operands)

GATED_DELTA_RULE = op_of_signature(
    signatures.GATED_DELTA_RULE,
    reference=refs.gated_delta_rule,
    roundings=_DELTA_ROUNDINGS(heads=("hk", "hv"), state=("hv", "k", "p")),
    model_sizes=(_QWEN3_NEXT,),
    draws={**_DELTA_DRAWS, **_GATE_DRAWS},
    neutral={"g": 0.0, "beta": 1.0},
    **_LINEAR,
)

KDA = op_of_signature(
    signatures.KDA,
    reference=refs.kda,
    roundings=_DELTA_ROUNDINGS(heads=("h",), state=("h", "k", "p")),
    model_sizes=(_KIMI_LINEAR,),
    draws={**_DELTA_DRAWS, **_GATE_DRAWS},
    neutral={"g": 0.0, "beta": 1.0},
    **{
        **_LINEAR,
        "sizes": (
            {"h": 2, "k": 4, "p": 3},
            {"h": 1, "k": 1, "p": 1},
            {"h": 6, "k": 3, "p": 5},
            {"h": 2, "k": 17, "p": 18},
        ),
    },
)


CAUSAL_CONV1D_UPDATE = op_on_pool(signatures.CAUSAL_CONV1D_UPDATE, CAUSAL_CONV1D, refs.causal_conv1d_update)
SELECTIVE_SCAN_UPDATE = op_on_pool(signatures.SELECTIVE_SCAN_UPDATE, SELECTIVE_SCAN, refs.selective_scan_update)
SSD_UPDATE = op_on_pool(signatures.SSD_UPDATE, SSD, refs.ssd_update)
GATED_DELTA_RULE_UPDATE = op_on_pool(signatures.GATED_DELTA_RULE_UPDATE, GATED_DELTA_RULE, refs.gated_delta_rule_update)
KDA_UPDATE = op_on_pool(signatures.KDA_UPDATE, KDA, refs.kda_update)
CAUSAL_CONV1D_VERIFY = op_on_drafts(signatures.CAUSAL_CONV1D_VERIFY, CAUSAL_CONV1D, refs.causal_conv1d_verify)
SELECTIVE_SCAN_VERIFY = op_on_drafts(signatures.SELECTIVE_SCAN_VERIFY, SELECTIVE_SCAN, refs.selective_scan_verify)
SSD_VERIFY = op_on_drafts(signatures.SSD_VERIFY, SSD, refs.ssd_verify)
GATED_DELTA_RULE_VERIFY = op_on_drafts(
    signatures.GATED_DELTA_RULE_VERIFY, GATED_DELTA_RULE, refs.gated_delta_rule_verify
)
KDA_VERIFY = op_on_drafts(signatures.KDA_VERIFY, KDA, refs.kda_verify)
_CACHE_WRITE = op_of_signature(
    signatures.CACHE_WRITE,
    reference=refs.cache_write,
    absolute=magnitude_ops.cache_write,
    sizes=(
        {"h": 2, "k": 4, "v": 3, "c": "cells"},
        {"h": 1, "k": 1, "v": 1, "c": "cells"},
        {"h": 3, "k": 8, "v": 8, "c": "cells"},
    ),
    model_sizes=({"h": 2, "k": 128, "v": 128, "c": "cells"}, {"h": 1, "k": 192, "v": 128, "c": "cells"}),
    draws={"slot_mapping": "slot|c"},
    pool=("slot_mapping", "k_cache", "new_k_cache", "v_cache", "new_v_cache"),
)
CACHE_WRITE = replace(_CACHE_WRITE, constants=frozenset(_CACHE_WRITE.inputs))

GROUPED_MM = op_of_signature(
    signatures.GROUPED_MM,
    reference=refs.grouped_mm,
    absolute=magnitude_ops.grouped_mm,
    sizes=({"d": 3, "f": 5}, {"d": 1, "f": 1}, {"d": 16, "f": 16}, {"d": 20, "f": 24}),
    model_sizes=({"d": 2048, "f": 768}, {"d": 100, "f": 260}),
    matmul=True,
    flops=flops.grouped_mm,
)

_SCALED_GROUPED_MM = op_of_signature(
    signatures.SCALED_GROUPED_MM,
    reference=refs.scaled_grouped_mm,
    absolute=magnitude_ops.scaled_grouped_mm,
    sizes=(
        {"d": 64, "b": 2, "f": 5, "bf": 5},
        {"d": 48, "b": 3, "f": 16, "bf": 16},
        {"d": 256, "b": 2, "f": 128, "bf": 1},
        {"d": 160, "b": 5, "f": 12, "bf": 12},
        {"d": 1, "b": 1, "f": 1, "bf": 1},
    ),
    model_sizes=({"d": 2048, "b": 64, "f": 768, "bf": 768}, {"d": 2048, "b": 16, "f": 768, "bf": 6}),
    conditions=("f % bf == 0",),
    draws={
        **{"x": "element|block_format", "weight": "element|block_format"},
        **{"x_scales": "scale|block_format", "weight_scales": "scale|block_format", "alpha": "step"},
    },
    flops=flops.grouped_mm,
)
SCALED_GROUPED_MM = replace(_SCALED_GROUPED_MM, constants=frozenset(_SCALED_GROUPED_MM.inputs))

MIXTURE_OF_EXPERTS = op_of_signature(
    signatures.MIXTURE_OF_EXPERTS,
    reference=refs.mixture_of_experts,
    options={"top": (2, 1)},
    sizes=({"d": 3, "e": 4, "f": 5}, {"d": 1, "e": 2, "f": 1}, {"d": 16, "e": 6, "f": 20}),
    conditions=("e >= 2",),
    model_sizes=({"d": 256, "e": 8, "f": 96}, {"d": 100, "e": 33, "f": 60}),
    draws={"logits": "choice"},
    matmul=True,
    flops=flops.mixture_of_experts,
)

DISPATCH_COMBINE = op_of_signature(
    signatures.DISPATCH_COMBINE,
    reference=refs.dispatch_combine,
    absolute=magnitude_ops.dispatch_combine,
    options={"top": (2, 1), "capacity": (None, 1, 12)},
    sizes=({"d": 3, "e": 4}, {"d": 1, "e": 2}, {"d": 16, "e": 6}),
    conditions=("e >= 2",),
    model_sizes=({"d": 256, "e": 8}, {"d": 100, "e": 33}),
    draws={"logits": "choice"},
)

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        *(CAUSAL_CONV1D, SELECTIVE_SCAN, SSD, ROPE, ROPE_QK, HADAMARD, ROPE_HADAMARD, ROUND_FP8, ATTENTION),
        *(LINEAR_ATTENTION, SIMPLE_GLA, RETENTION, DELTA_RULE, GATED_DELTA_RULE, KDA),
        *(CAUSAL_CONV1D_UPDATE, SELECTIVE_SCAN_UPDATE, SSD_UPDATE, GATED_DELTA_RULE_UPDATE, KDA_UPDATE),
        *(CAUSAL_CONV1D_VERIFY, SELECTIVE_SCAN_VERIFY, SSD_VERIFY, GATED_DELTA_RULE_VERIFY, KDA_VERIFY),
        *(CACHE_WRITE, GROUPED_MM, SCALED_GROUPED_MM, MIXTURE_OF_EXPERTS, DISPATCH_COMBINE, QUANTIZE_BLOCKS),
        *LOSSES,
    )
}


def find_op(name: str) -> Op:
    """The op of this name. Raises UsageError with the names of all ops."""
    if name not in OPS:
        raise UsageError(f"op: {name!r} is not known; there are {', '.join(OPS)}")
    return OPS[name]
