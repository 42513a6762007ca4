"""Stand-ins with the signatures of engines for steps of drafts, correct and with bugs; all update the pool in place."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from packproof.adapters import DraftBuffer, SlotPerDraft, adapt, cu_seqlens_int32, max_seqlen
from packproof.adapters.adapter import Adapter

BUGS = ("rejected drafts stay", "one slot for all drafts", "padding writes to the last slot")
BUGS_BESIDE = (
    "the pool is updated",
    "the state before a draft is stored",
    "slots of the pool in the buffer",
    "a step begins from the buffer",
)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    bug: str = "",
) -> Tensor:
    """vLLM's: x (t, d). conv_state: (slots, d, w-1 + drafts-1). conv_state_indices: (s,), -1 for padding."""
    assert conv_state_indices is not None
    assert query_start_loc is not None
    assert num_accepted_tokens is not None
    assert max_query_len >= 0
    y, wide, w = torch.zeros_like(x), torch.promote_types(x.dtype, torch.float32), weight.shape[1]
    for j, (start, end) in enumerate(pairwise(query_start_loc.tolist())):
        slot, accepted = int(conv_state_indices[j]), int(num_accepted_tokens[j])
        if start == end or (slot < 0 and bug != "padding writes to the last slot"):
            continue
        begin = conv_state.shape[2] - w + 1 if bug == "rejected drafts stay" else accepted - 1
        inputs = torch.cat([conv_state[slot, :, begin : begin + w - 1], x[start:end].T], 1)
        rows = (inputs.to(wide).unfold(1, w, 1) * weight.to(wide)[:, None]).sum(-1).T
        rows = rows if bias is None else rows + bias.to(wide)
        y[start:end] = silu(rows) if activation else rows
        conv_state[slot, :, : w - 2 + end - start] = inputs[:, 1:]
    return y


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    bug: str = "",
) -> Tensor:
    """vLLM's, of Mamba: state (slots, d, n). x, dt, z: (t, d). B, C: (t, g, n). state_batch_indices: (s, drafts)."""
    assert state_batch_indices is not None
    assert num_accepted_tokens is not None
    assert cu_seqlens is not None
    y, wide = torch.zeros_like(x), torch.promote_types(x.dtype, torch.float32)
    B, C = (group.to(wide) if group.ndim == 3 else group.to(wide)[:, None] for group in (B, C))
    B, C = (group.repeat_interleave(x.shape[1] // group.shape[1], 1) for group in (B, C))
    steps = dt.to(wide) if dt_bias is None else dt.to(wide) + dt_bias
    steps = softplus(steps, threshold=40) if dt_softplus else steps
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        slots = state_batch_indices[j].tolist()
        if slots[0] < 0 and bug != "padding writes to the last slot":
            continue
        accepted = len(slots) if bug == "rejected drafts stay" else int(num_accepted_tokens[j])
        h = state[slots[accepted - 1]].clone()
        for i in range(start, end):
            h = torch.exp(steps[i][:, None] * A) * h + (steps[i] * x[i].to(wide))[:, None] * B[i]
            row = (h * C[i]).sum(-1) + (0 if D is None else D * x[i].to(wide))
            y[i] = row if z is None else row * silu(z[i].to(wide))
            if i - start < len(slots):
                state[slots[0 if bug == "one slot for all drafts" else i - start]] = h
    return y


def selective_state_verify(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int = 0,
    cu_seqlens: Tensor | None = None,
    bug: str = "",
) -> Tensor:
    """SGLang's, of Mamba: state (slots, d, n) stays. intermediate_states_buffer: (rows, drafts, d, n)."""
    assert state_batch_indices is not None
    assert intermediate_state_indices is not None
    assert intermediate_states_buffer is not None
    buffer, rows = intermediate_states_buffer, intermediate_state_indices
    assert buffer.shape[1] == cache_steps
    drafts = torch.where(rows < 0, -1, rows * cache_steps)[:, None] + torch.arange(cache_steps) * (rows >= 0)[:, None]
    first = torch.where(state_batch_indices < 0, -1, buffer.shape[0] * cache_steps + state_batch_indices)[:, None]
    if bug == "slots of the pool in the buffer":
        drafts = state_batch_indices[:, None] * cache_steps + torch.arange(cache_steps)
    if bug == "a step begins from the buffer":
        first = drafts[:, -1:]
    slots = torch.cat([first, drafts] if bug == "the state before a draft is stored" else [drafts, first], 1)
    accepted = torch.full_like(rows, 1 if bug == "the state before a draft is stored" else cache_steps + 1)
    states = torch.cat([buffer.flatten(0, 1), state])
    y = selective_state_update(
        states,
        x,
        dt,
        A,
        B,
        C,
        D,
        z,
        dt_bias,
        dt_softplus,
        torch.where(rows[:, None] < 0, -1, slots),
        accepted,
        cu_seqlens,
    )
    buffer.copy_(states[: -len(state)].view(buffer.shape))
    for slot, row in zip(state_batch_indices.tolist(), rows.tolist(), strict=True):
        if bug == "the pool is updated" and slot >= 0:
            state[slot] = buffer[row, -1]
    return y


def convolution(bug: str = "") -> Adapter:
    return adapt(
        causal_conv1d_update,
        op="causal_conv1d_verify",
        names={"states": "conv_state", "state_indices": "conv_state_indices"},
        metadata={"query_start_loc": cu_seqlens_int32, "max_query_len": max_seqlen},
        in_place=("states",),
        given={"bug": bug},
        domain=["w >= 2", "length <= a"],
        slack=False,
    )


def mamba(bug: str = "") -> Adapter:
    names = {"u": "x", "delta": "dt", "delta_bias": "dt_bias", "delta_softplus": "dt_softplus"}
    return adapt(
        selective_state_update,
        op="selective_scan_verify",
        slots=SlotPerDraft(),
        names={**names, "states": "state", "state_indices": "state_batch_indices"},
        metadata={"cu_seqlens": cu_seqlens_int32},
        in_place=("states",),
        given={"bug": bug},
        domain=["length <= a"],
        slack=False,
    )


def beside_a_pool(bug: str = "") -> Adapter:
    names = {"u": "x", "delta": "dt", "delta_bias": "dt_bias", "delta_softplus": "dt_softplus"}
    names |= {"states": "intermediate_states_buffer", "state_indices": "intermediate_state_indices"}
    return adapt(
        selective_state_verify,
        op="selective_scan_verify",
        slots=DraftBuffer(pool="state", slots="state_batch_indices", drafts="cache_steps"),
        names=names,
        metadata={"cu_seqlens": cu_seqlens_int32},
        in_place=("states",),
        given={"bug": bug},
        domain=["length <= a"],
        slack=False,
    )
