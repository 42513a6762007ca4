"""Stand-ins of the kernels of servers that have a peer, with their signatures."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from tests.adapters import draft_kernels

_MAMBA = "vllm.model_executor.layers.mamba.ops"
_ATTENTION = "vllm.v1.attention.ops"


def causal_conv1d_update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Any, activation: Any, indices: Tensor, accepted: Any,
    query_start_loc: Any, max_query_len: int, *, out: Tensor,
) -> None:  # fmt: skip
    """vLLM's: of one token for each request, or of drafts, where a slot has room for the longest step."""
    assert max_query_len in (-1, conv_state.shape[2] - weight.shape[1] + 2)
    if query_start_loc is None:
        query_start_loc, accepted = torch.arange(len(x) + 1), torch.ones(len(x), dtype=torch.int32)
    out.copy_(
        draft_kernels.causal_conv1d_update(
            x, conv_state, weight, bias, activation, indices - (indices == 0).int(), accepted, query_start_loc, 1
        )
    )


def selective_state_update(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, z: Any,
    dt_softplus: bool, *, state_batch_indices: Tensor, num_accepted_tokens: Any, cu_seqlens: Any, out: Tensor,
) -> None:  # fmt: skip
    """vLLM's, of Mamba and, with heads, Mamba-2. A request without a slot gets numbers of no meaning."""
    slots = state_batch_indices[:, None] if state_batch_indices.ndim == 1 else state_batch_indices
    out.fill_(7)
    offsets = torch.arange(len(x) + 1) if cu_seqlens is None else cu_seqlens
    accepted = torch.ones(len(slots), dtype=torch.int32) if num_accepted_tokens is None else num_accepted_tokens
    heads = range(x.shape[1]) if x.ndim == 3 else [slice(None)]
    for h in heads:
        of_head = h if x.ndim == 3 else slice(None)
        group = slice(None) if x.ndim == 2 else slice(h * B.shape[1] // x.shape[1], h * B.shape[1] // x.shape[1] + 1)
        y = draft_kernels.selective_state_update(
            state[:, of_head], x[:, of_head], dt[:, of_head], A[of_head], B[:, group], C[:, group], D[of_head],
            None if z is None else z[:, of_head], dt_bias[of_head], dt_softplus,
            torch.where(slots > 0, slots, -1), accepted, offsets,
        )  # fmt: skip
        rows = (slots[:, 0] > 0).repeat_interleave(offsets.diff())
        out[rows, of_head] = y[rows]


def fused_recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Any, state: Tensor, inplace: bool,
    cu_seqlens: Tensor, indices: Tensor, accepted: Any, l2norm: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """vLLM's: states (v, k). The rows of a request without a slot are not written."""
    assert inplace
    return _rule(refs.gated_delta_rule, (q, k, v, g, beta), state.mT, indices, accepted, cu_seqlens, 0, scale=scale,
                 qk_l2norm=l2norm), state  # fmt: skip


def fused_recurrent_gated_delta_rule_update(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: Any, pool: Tensor, slots: Tensor,
    cu_seqlens: Tensor, l2norm: bool, *, disable_state_update: bool, intermediate_states_buffer: Tensor,
    intermediate_state_indices: Tensor, cache_steps: int,
) -> Tensor:  # fmt: skip
    """SGLang's: it stores the states after the drafts of a request in a row of the buffer, (v, k)."""
    assert disable_state_update
    assert intermediate_states_buffer.shape[1] == cache_steps
    states = torch.cat([intermediate_states_buffer.flatten(0, 1), pool]).mT
    rows = intermediate_state_indices[:, None] * cache_steps + torch.arange(cache_steps)
    first = (intermediate_states_buffer.shape[0] * cache_steps + slots)[:, None]
    indices = torch.where(slots[:, None] < 0, -1, torch.cat([rows, first], 1))
    accepted = torch.full_like(slots, cache_steps + 1)
    y = _rule(refs.gated_delta_rule, (q, k, v, g, beta), states, indices, accepted, cu_seqlens, -1, scale=scale,
              qk_l2norm=l2norm)  # fmt: skip
    intermediate_states_buffer.copy_(states[: -len(pool)].mT.view(intermediate_states_buffer.shape))
    return y


def fused_recurrent_kda_fwd(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Any, dt_bias: Any, state: Tensor, scale: Any,
    *, cu_seqlens: Tensor, ssm_state_indices: Tensor, num_accepted_tokens: Any, use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool, use_beta_sigmoid_in_kernel: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """fla's: it skips no request."""
    assert use_gate_in_kernel == (A_log is not None)
    assert bool((ssm_state_indices >= 0).all())
    gate = {"A_log": A_log, "dt_bias": dt_bias}
    y = _rule(
        refs.kda, (q, k, v, g, beta), state, ssm_state_indices, num_accepted_tokens, cu_seqlens, -1, scale=scale,
        qk_l2norm=use_qk_l2norm_in_kernel, beta_sigmoid=use_beta_sigmoid_in_kernel, **gate,
    )  # fmt: skip
    return y, state


def _rule(
    rule: Any, tokens: tuple[Tensor, ...], state: Tensor, indices: Tensor, accepted: Any, cu_seqlens: Tensor,
    null: int, **options: Any,
) -> Tensor:  # fmt: skip
    y = torch.full_like(tokens[2], torch.nan)
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        slots = (indices[:, None] if indices.ndim == 1 else indices)[j].tolist()
        h = state[slots[0 if accepted is None else int(accepted[j]) - 1]][None]
        for i in range(start, end if slots[0] > null else start):
            one = [x[0, i : i + 1] for x in tokens]
            y[0, i], h = rule(
                *one, initial_states=h, cu_seqlens=torch.tensor([0, 1]), return_final_states=True, **options
            )
            state[slots[i - start]] = h[0]
    return y


def unified_attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seqlens_q: Tensor, max_seqlen_q: int, seqused_k: Tensor,
    max_seqlen_k: int, softmax_scale: float, causal: bool, window_size: tuple[int, int], block_table: Tensor,
    softcap: float, **others: Any,
) -> None:  # fmt: skip
    """vLLM's, over pages by block tables."""
    assert others["softmax_segm_output"].shape[:2] == q.shape[:2]
    rows = [(table.long()[:, None] * k.shape[1] + torch.arange(k.shape[1])).flatten() for table in block_table]
    slots = [of_request[:n] for of_request, n in zip(rows, seqused_k.tolist(), strict=True)]
    options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    out.copy_(_attend(q, k.flatten(0, 1), v.flatten(0, 1), cu_seqlens_q, slots, sinks=others["sinks"], **options))


def triton_reshape_and_cache_flash(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, *others: Any
) -> None:
    """vLLM's."""
    for rows, cache in ((key, key_cache), (value, value_cache)):
        cache.flatten(0, 1)[slot_mapping[slot_mapping >= 0]] = rows[slot_mapping >= 0]


def decode_attention_fwd(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, kv_indptr: Tensor, kv_indices: Tensor, parts: Tensor, lse: Tensor,
    counts: Tensor, most: int, scale: float, k_scale: float, v_scale: float, *, logit_cap: float, sinks: Any,
) -> None:  # fmt: skip
    """SGLang's, of one token for each request."""
    extend_attention_fwd_unified(
        q, o, k, v, k_scale, v_scale, torch.arange(len(q) + 1), kv_indptr, kv_indices, kv_indptr.diff() - 1, 1,
        sm_scale=scale, logit_cap=logit_cap, is_causal=True, sinks=sinks,
    )  # fmt: skip


def extend_attention_fwd_unified(
    q: Tensor, o: Tensor, k: Tensor, v: Tensor, k_scale: float, v_scale: float, qo_indptr: Tensor, kv_indptr: Tensor,
    kv_indices: Tensor, prefix_lens: Tensor, longest: int, *, sm_scale: Any, logit_cap: float, is_causal: bool,
    sinks: Any,
) -> None:  # fmt: skip
    """SGLang's, over rows by lists of them."""
    assert torch.equal(prefix_lens, kv_indptr.diff() - qo_indptr.diff())
    slots = [kv_indices[a:b].long() for a, b in pairwise(kv_indptr.tolist())]
    options = {"softmax_scale": sm_scale, "causal": is_causal, "softcap": logit_cap}
    o.copy_(_attend(q, k, v, qo_indptr, slots, sinks=sinks, **options))


class BatchPrefillWithPagedKVCacheWrapper:
    """FlashInfer's: log-sum-exps to base 2."""

    def __init__(self, workspace: Tensor, layout: str) -> None:
        assert layout == "NHD"

    def plan(
        self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, last_page_len: Tensor, *sizes: int,
        sm_scale: Any, window_left: int, logits_soft_cap: Any, q_data_type: Any, kv_data_type: Any,
        causal: bool = False,
    ) -> None:  # fmt: skip
        page_size = sizes[3]
        rows = [
            (kv_indices[a:b].long()[:, None] * page_size + torch.arange(page_size)).flatten()
            for a, b in pairwise(kv_indptr.tolist())
        ]
        self.slots = [
            row[: len(row) - page_size + last] for row, last in zip(rows, last_page_len.tolist(), strict=True)
        ]
        self.offsets = qo_indptr
        self.options = {"softmax_scale": sm_scale, "softcap": logits_soft_cap or 0.0, "causal": causal}
        self.options["window_size"] = (window_left, -1)

    def run(self, q: Tensor, pool: tuple[Tensor, Tensor], *, return_lse: bool = False) -> Any:
        k, v = (x.flatten(0, 1) for x in pool)
        result = _attend(q, k, v, self.offsets, self.slots, return_lse=return_lse, **self.options)
        return (result[0], result[1] / 0.6931471805599453) if return_lse else result


class BatchDecodeWithPagedKVCacheWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """FlashInfer's, of one token for each request."""

    def plan(self, kv_indptr: Tensor, *pages_and_sizes: Any, **options: Any) -> None:  # type: ignore[override]
        super().plan(torch.arange(len(kv_indptr)), kv_indptr, *pages_and_sizes, **options)


def _attend(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, slots: list[Tensor], **options: Any) -> Any:
    rows = torch.cat([torch.zeros(0, dtype=torch.int64), *slots])
    key_offsets = torch.tensor([0, *map(len, slots)]).cumsum(0)
    return refs.attention(q, k[rows], v[rows], cu_seqlens=offsets, cu_seqlens_k=key_offsets, **options)


STAND_INS = {
    f"{_MAMBA}.causal_conv1d": [causal_conv1d_update],
    f"{_MAMBA}.mamba_ssm": [selective_state_update],
    "vllm.third_party.flash_linear_attention.ops.fused_recurrent": [fused_recurrent_gated_delta_rule],
    f"{_ATTENTION}.triton_unified_attention": [unified_attention],
    f"{_ATTENTION}.triton_reshape_and_cache_flash": [triton_reshape_and_cache_flash],
    "fla.ops.kda.fused_recurrent": [fused_recurrent_kda_fwd],
    "sglang.srt.layers.attention.fla.fused_recurrent": [fused_recurrent_gated_delta_rule_update],
    "sglang.srt.layers.attention.triton_ops.decode_attention": [decode_attention_fwd],
    "sglang.srt.layers.attention.triton_ops.extend_attention": [extend_attention_fwd_unified],
    "flashinfer": [BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper],
}
"""The stand-ins, by the modules in which their peers look for them."""
