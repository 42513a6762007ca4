"""SGLang: its steps of a server in Triton, over caches whose pages hold one row each, and over a buffer of drafts."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import DraftBuffer, OfKeys, Pages, adapt, cu_seqlens_int32, max_seqlen
from packproof.adapters.adapter import Adapter

_ATTENTION = "sglang.srt.layers.attention.triton_ops"
_CACHE = Pages(size=1)
_ROWS = {"kv_indptr": OfKeys(_CACHE.kv_indptr), "kv_indices": OfKeys(_CACHE.kv_indices)}
_PARTS = 8  # into which it divides the keys of a token, among programs


def _decode(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, kv_indptr: Tensor, kv_indices: Tensor,
    softmax_scale: float | None = None, softcap: float = 0.0, causal: bool = False,  # noqa: ARG001
) -> Tensor:  # fmt: skip
    """One token for each sequence, the last one: causal or not is the same."""
    requests, heads, width = len(q), q.shape[1], v.shape[-1]
    y = q.new_zeros(requests, heads, width)
    parts = q.new_empty((requests, heads, _PARTS, width), dtype=torch.float32)
    lse = q.new_empty((requests, heads, _PARTS), dtype=torch.float32)
    counts = torch.full((requests,), _PARTS, dtype=torch.int32, device=q.device)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    import_module(f"{_ATTENTION}.decode_attention").decode_attention_fwd(
        q, k.squeeze(1), v.squeeze(1), y, kv_indptr, kv_indices, parts, lse, counts, _PARTS, scale, 1.0, 1.0,
        logit_cap=softcap, sinks=sinks,
    )  # fmt: skip
    return y


def _extend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, longest: int,
    kv_indptr: Tensor, kv_indices: Tensor, softmax_scale: float | None = None, softcap: float = 0.0,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    y = q.new_zeros(*q.shape[:2], v.shape[-1])
    prefixes = (kv_indptr.diff() - cu_seqlens.diff()).int()
    import_module(f"{_ATTENTION}.extend_attention").extend_attention_fwd_unified(
        q, y, k.squeeze(1), v.squeeze(1), 1.0, 1.0, cu_seqlens, kv_indptr, kv_indices, prefixes, longest,
        sm_scale=softmax_scale, logit_cap=softcap, is_causal=causal, sinks=sinks,
    )  # fmt: skip
    return y


def _adapt_attention(function: Any, metadata: dict[str, Any], *domain: str) -> Adapter:
    return adapt(
        function,
        op="attention",
        keys=_CACHE,
        metadata={**metadata, **_ROWS},
        domain="; ".join(("k >= 16; v >= 16", *domain)),  # tl.dot takes no fewer
        dtypes=("bfloat16", "float16"),
        gradients=False,
        slack=False,
    )


attention_decode = _adapt_attention(_decode, {}, "length == 1", "length_k > 0")
attention_extend = _adapt_attention(
    _extend, {"cu_seqlens": cu_seqlens_int32, "longest": max_seqlen}, "length <= length_k"
)


def _verify_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float | None = None, qk_l2norm: bool = False,
    buffer: Tensor, rows: Tensor, pool: Tensor, slots: Tensor, drafts: int, cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    """The outputs of requests without a slot are those of a state of zeros."""
    rule = import_module("sglang.srt.layers.attention.fla.fused_recurrent").fused_recurrent_gated_delta_rule_update
    y = rule(
        *(x.unsqueeze(0).contiguous() for x in (q, k, v, g, beta)), scale, pool, slots, cu_seqlens, qk_l2norm,
        disable_state_update=True, intermediate_states_buffer=buffer, intermediate_state_indices=rows,
        cache_steps=drafts,
    )  # fmt: skip
    has_slot = (slots >= 0).repeat_interleave(cu_seqlens.diff(), output_size=len(v))
    return torch.where(has_slot[:, None, None], y.squeeze(0), 0)


gated_delta_rule_verify = adapt(
    _verify_rule,
    op="gated_delta_rule_verify",
    slots=DraftBuffer("pool", "slots", "drafts"),
    names={"states": "buffer", "state_indices": "rows"},
    axes={"states": "c a hv p k", "new_states": "c a hv p k"},
    in_place=("states",),
    domain="length <= a; k <= 256",
    slack=False,
    float32=("g", "beta"),
)
