"""vLLM: its steps of a server in Triton, over pools of states and the pages of a cache.

The first slot of a pool belongs to no request.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import (
    NullSlot,
    OfKeys,
    PagedSlots,
    Pages,
    SlotPerDraft,
    adapt,
    cu_seqlens_int32,
    lengths,
    max_seqlen,
)
from packproof.adapters.adapter import Adapter
from packproof.properties.declarations import Promises

_MAMBA = "vllm.model_executor.layers.mamba.ops"
_FLA = "vllm.third_party.flash_linear_attention.ops.fused_recurrent"
_ATTENTION = "vllm.v1.attention.ops"
_PARTS = 16  # of the keys, which a call of few tokens divides among programs
_CALLS_IN_PARTS = 128  # blocks of queries up to which it does so
_ONE_TOKEN = "length == 1"
_DRAFTS = "length <= a"
_OFFSETS = {"cu_seqlens": cu_seqlens_int32}


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None, states: Tensor,
    state_indices: Tensor, num_accepted_tokens: Tensor | None = None, cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The longest step that the kernel takes is the one that fills the window of a slot."""
    y = torch.zeros_like(x)
    longest = states.shape[-1] - weight.shape[1] + 2 if cu_seqlens is not None else -1
    update = import_module(f"{_MAMBA}.causal_conv1d").causal_conv1d_update
    update(x, states, weight, bias, activation, state_indices, num_accepted_tokens, cu_seqlens, longest, out=y)
    return y


def _adapt_step(function: Any, op: str, *domain: str, **declaration: Any) -> Adapter:
    declaration = {"slots": NullSlot(), "metadata": {}, **declaration}
    return adapt(function, op=op, in_place=("states",), slack=False, domain="; ".join(domain), **declaration)


_WIDTHS = "2 <= w <= 6"
_PRODUCTS = Promises(compute="operand")  # inputs times weights are rounded to the dtype of the tokens
causal_conv1d_update = _adapt_step(
    _convolve, "causal_conv1d_update", _ONE_TOKEN, _WIDTHS, float32=("weight", "bias"), promises=_PRODUCTS
)
causal_conv1d_verify = _adapt_step(
    _convolve,
    "causal_conv1d_verify",
    _DRAFTS,
    _WIDTHS,
    float32=("weight", "bias"),
    promises=_PRODUCTS,
    metadata=_OFFSETS,
)


def _update_states(
    states: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor,
    z: Tensor | None, dt_softplus: bool, slots: Tensor, accepted: Tensor | None, cu_seqlens: Tensor | None,
) -> Tensor:  # fmt: skip
    y = torch.zeros_like(x)
    update = import_module(f"{_MAMBA}.mamba_ssm").selective_state_update
    step = {"state_batch_indices": slots, "num_accepted_tokens": accepted, "cu_seqlens": cu_seqlens, "out": y}
    update(states, x, dt, A, B, C, D, dt_bias, z, dt_softplus, **step)
    return _with_slot(y, slots, cu_seqlens)


def _with_slot(y: Tensor, slots: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The rows of requests with a slot; 0 in all others, where the kernels write what they like, or nothing."""
    has_slot = (slots if slots.ndim == 1 else slots[:, 0]) > 0
    rows = has_slot if cu_seqlens is None else has_slot.repeat_interleave(cu_seqlens.diff(), output_size=len(y))
    return torch.where(rows.view(-1, *[1] * (y.ndim - 1)), y, 0)


def _update_channels(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, states: Tensor, state_indices: Tensor,
    num_accepted_tokens: Tensor | None = None, cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    assert D is not None
    assert delta_bias is not None
    step = (state_indices, num_accepted_tokens, cu_seqlens)
    return _update_states(states, u, delta, A, B, C, D, delta_bias, z, delta_softplus, *step)


def _update_heads(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, states: Tensor, state_indices: Tensor,
    num_accepted_tokens: Tensor | None = None, cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The kernel takes dt, A, D and dt_bias per channel. A stride of 0 shares one value within a head."""
    assert D is not None
    assert dt_bias is not None
    D, dt_bias = (v.view(x.shape[1], -1).expand(x.shape[1:]) for v in (D, dt_bias))
    dt, A = dt[..., None].expand_as(x), A[:, None, None].expand(states.shape[1:])
    step = (state_indices, num_accepted_tokens, cu_seqlens)
    return _update_states(states, x, dt, A, B, C, D, dt_bias, z, dt_softplus, *step)


_OF_DRAFTS: dict[str, Any] = {"slots": SlotPerDraft(null=0), "metadata": _OFFSETS}
selective_scan_update = _adapt_step(_update_channels, "selective_scan_update", _ONE_TOKEN, "D; delta_bias; g == 1")
selective_scan_verify = _adapt_step(
    _update_channels, "selective_scan_verify", _DRAFTS, "D; delta_bias; g == 1", **_OF_DRAFTS
)
ssd_update = _adapt_step(_update_heads, "ssd_update", _ONE_TOKEN, "D; dt_bias")
ssd_verify = _adapt_step(_update_heads, "ssd_verify", _DRAFTS, "D; dt_bias", **_OF_DRAFTS)


def _update_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float | None = None,
    qk_l2norm: bool = False, states: Tensor, state_indices: Tensor, num_accepted_tokens: Tensor | None = None,
    cu_seqlens: Tensor,
) -> Tensor:  # fmt: skip
    rule = import_module(_FLA).fused_recurrent_gated_delta_rule
    tokens = (x.unsqueeze(0).contiguous() for x in (q, k, v, g, beta))
    y, _ = rule(*tokens, scale, states, True, cu_seqlens, state_indices, num_accepted_tokens, qk_l2norm)
    return _with_slot(y.squeeze(0), state_indices, cu_seqlens)


_RULE: dict[str, Any] = {"float32": ("g", "beta"), "metadata": _OFFSETS}
gated_delta_rule_update = _adapt_step(
    _update_rule,
    "gated_delta_rule_update",
    _ONE_TOKEN,
    "k <= 256",
    **_RULE,
    axes={"states": "c hv p k", "new_states": "c hv p k"},
)
gated_delta_rule_verify = _adapt_step(
    _update_rule,
    "gated_delta_rule_verify",
    _DRAFTS,
    "k <= 256",
    **(_RULE | _OF_DRAFTS),
    axes={"states": "c a hv p k", "new_states": "c a hv p k"},
)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, *, cu_seqlens: Tensor, longest: int,
    key_lengths: Tensor, longest_keys: int, block_table: Tensor, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """Few tokens are attended in parts, as the engine does that: it has the tensors for the parts.

    The output is contiguous, as the engine's: `zeros_like` would take over the strides of q.
    """
    y = q.new_zeros(q.shape)
    heads, width = q.shape[1], 1 << (q.shape[2] - 1).bit_length()
    parts = q.new_empty((len(q), heads, _PARTS, width), dtype=torch.float32)
    largest, total = (q.new_empty((len(q), heads, _PARTS), dtype=torch.float32) for _ in range(2))
    import_module(f"{_ATTENTION}.triton_unified_attention").unified_attention(
        q, k, v, y, cu_seqlens, longest, key_lengths, longest_keys,
        q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale, causal, window_size, block_table, softcap,
        q_descale=None, k_descale=None, v_descale=None, seq_threshold_3D=_CALLS_IN_PARTS // k.shape[2],
        num_par_softmax_segments=_PARTS, softmax_segm_output=parts, softmax_segm_max=largest,
        softmax_segm_expsum=total, sinks=sinks,
    )  # fmt: skip
    return y


# A sequence has at least as many keys as tokens. Windows end at the token itself.
_CACHE = Pages(size=(16, 64))
attention = adapt(
    _attend,
    op="attention",
    keys=_CACHE,
    metadata={
        "cu_seqlens": cu_seqlens_int32,
        "longest": max_seqlen,
        "key_lengths": OfKeys(lengths),
        "longest_keys": OfKeys(max_seqlen),
        "block_table": OfKeys(_CACHE.block_tables),
    },
    domain="k == v; k >= 16; length <= length_k; causal or window_size in ((-1, -1),)",
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    gradients=False,
    slack=False,
)


def _write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    write = import_module(f"{_ATTENTION}.triton_reshape_and_cache_flash").triton_reshape_and_cache_flash
    write(k, v, k_cache, v_cache, slot_mapping, "auto", None, None)


cache_write = adapt(
    _write, op="cache_write", metadata={}, slots=PagedSlots(16), in_place=("k_cache", "v_cache"), domain="k == v"
)
