"""FlashInfer: prefill by cuDNN over pages, and steps of the gated delta rule in CuTe; neither compiles C++."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import NullSlot, OfKeys, Pages, adapt, cu_seqlens_int32, lengths, max_seqlen
from packproof.adapters.adapter import Adapter
from packproof.properties.declarations import Promises
from packproof.properties.ops import find_op

_WORKSPACE_BYTES = 128 * 2**20
_KEYS = {"key_lengths": OfKeys(lengths), "longest_keys": OfKeys(max_seqlen)}
_QUERIES = {"query_lengths": lengths, "longest": max_seqlen}
_BY_TOKEN = Pages(size=16)
_BY_HEAD = Pages(size=16, axis=2)


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _with_graph_buffers(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, query_lengths: Tensor, longest: int, kv_indptr: Tensor,
    kv_indices: Tensor, last_page_len: Tensor, block_tables: Tensor, key_lengths: Tensor, longest_keys: int,
    softmax_scale: float | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """The wrapper of paged prefill, with the buffers that a CUDA graph needs. Its offsets count elements."""
    from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper as Wrapper  # noqa: PLC0415

    offsets = cu_seqlens * (q.shape[1] * q.shape[2])
    pages = (kv_indptr, kv_indices, last_page_len)
    buffers = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
    copies = dict(zip(buffers, (x.clone() for x in (offsets, *pages)), strict=True))
    wrapper = Wrapper(_workspace(q.device), "NHD", use_cuda_graph=True, backend="cudnn", **copies)
    wrapper.plan(
        offsets, *pages, q.shape[1], k.shape[2], q.shape[2], k.shape[1], causal=causal, q_data_type=q.dtype,
        sm_scale=q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale, seq_lens=key_lengths,
        seq_lens_q=query_lengths, block_tables=block_tables, max_token_per_sequence=longest,
        max_sequence_kv=longest_keys,
    )  # fmt: skip
    y: Tensor = wrapper.run(q, (k, v))
    return y


def _without_offsets(
    q: Tensor, k: Tensor, v: Tensor, *, query_lengths: Tensor, longest: int, block_tables: Tensor,
    key_lengths: Tensor, longest_keys: int, softmax_scale: float | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    from flashinfer.cudnn.prefill import cudnn_batch_prefill_with_kv_cache  # noqa: PLC0415

    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    y = cudnn_batch_prefill_with_kv_cache(
        q, k, v, scale, _workspace(q.device), max_token_per_sequence=longest, max_sequence_kv=longest_keys,
        actual_seq_lens_q=query_lengths.view(-1, 1, 1, 1), actual_seq_lens_kv=key_lengths.view(-1, 1, 1, 1),
        block_tables=block_tables, causal=causal, return_lse=False,
    )  # fmt: skip
    return y[0] if isinstance(y, tuple) else y  # type: ignore[no-any-return]


def _adapted_prefill(function: Any, keys: Pages, metadata: dict[str, Any]) -> Adapter:
    return adapt(
        function,
        op="attention",
        keys=keys,
        metadata={**metadata, **_QUERIES, **_KEYS, "block_tables": OfKeys(keys.block_tables)},
        domain="k == 128; k == v; contiguous; 0 < length; length <= length_k",
        dtypes=("bfloat16", "float16"),
        gradients=False,
        slack=False,
    )


prefill_with_graph_buffers = _adapted_prefill(
    _with_graph_buffers,
    _BY_TOKEN,
    {
        "cu_seqlens": cu_seqlens_int32,
        "kv_indptr": OfKeys(_BY_TOKEN.kv_indptr),
        "kv_indices": OfKeys(_BY_TOKEN.kv_indices),
        "last_page_len": OfKeys(_BY_TOKEN.last_page_len),
    },
)
prefill_without_offsets = _adapted_prefill(_without_offsets, _BY_HEAD, {})


def _several_tokens(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, *, states: Tensor,
    state_indices: Tensor, qk_l2norm: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """The same number of tokens for each request. The pool of states is updated in place."""
    from flashinfer.gdn_decode import gated_delta_rule_mtp  # noqa: PLC0415

    rows = (x.view(len(state_indices), -1, *x.shape[1:]) for x in (q, k, v, g, beta))
    q, k, v, g, beta = (x.contiguous() for x in rows)
    y, pool = gated_delta_rule_mtp(
        q, k, v, states, state_indices, A_log, g, dt_bias, beta, scale, None, None, False, qk_l2norm
    )
    if pool is not states:
        states.copy_(pool.view_as(states))
    return _with_slot(y.flatten(0, 1), state_indices >= 0)


def _one_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, *, states: Tensor,
    state_indices: Tensor, qk_l2norm: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """One token for each request, and states in the dtype of the tokens. The first slot is that of no request."""
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose  # noqa: PLC0415

    q, k, v, g, beta = (x.unsqueeze(1).contiguous() for x in (q, k, v, g, beta))
    y, _ = gated_delta_rule_decode_pretranspose(
        q, k, v, None, A_log, g, dt_bias, beta, scale, None, qk_l2norm, states, state_indices
    )
    return _with_slot(y.squeeze(1), state_indices > 0)


def _with_slot(y: Tensor, has_slot: Tensor) -> Tensor:
    """The same tensor, with 0 for requests without a slot, where the kernels write what they like, or nothing."""
    rows = has_slot.repeat_interleave(len(y) // max(len(has_slot), 1))
    return y.masked_fill_(~rows[:, None, None], 0)


_RULE: Any = find_op("gated_delta_rule_update")
_STATES_LIKE_TOKENS = replace(
    _RULE, name="gated_delta_rule_update_16_bits", fixed=_RULE.fixed - {"states", "new_states"}
)
_STEP: dict[str, Any] = {
    "metadata": {},
    "axes": {"states": "c hv p k", "new_states": "c hv p k"},
    "in_place": ("states",),
    "fixed": {"beta_sigmoid": True},
    "dtypes": ("bfloat16", "float16"),
    "gradients": False,
    "slack": False,
    "promises": Promises(compute="fp32"),
}
_GATES = "A_log; dt_bias; contiguous"
several_tokens = adapt(
    _several_tokens,
    op=_RULE,
    domain=f"k == 128; p in (128, 192, 256); length == longest; longest > 0; {_GATES}",
    **_STEP,
)
one_token = adapt(
    _one_token, op=_STATES_LIKE_TOKENS, slots=NullSlot(), domain=f"k == 128; p == 128; length == 1; {_GATES}", **_STEP
)
