"""Steps with drafts, token by token as decode kernels run them: 2 correct, 2 with bugs of the state after a draft."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, einsum


def gated_delta_rule_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    states: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    bug: str = "",
) -> tuple[Tensor, Tensor]:
    """Op `gated_delta_rule_verify`, with the named bug."""
    wide, heads = torch.promote_types(q.dtype, torch.float32), v.shape[1]
    q, k = (x.to(wide).repeat_interleave(heads // x.shape[1], 1) for x in (q, k))
    q, decay, share = q * max(q.shape[2], 1) ** -0.5, g.to(wide).exp(), beta.to(wide)
    y, new_states = torch.zeros_like(v), states.clone()
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        slot, entry = int(state_indices[j]), int(num_accepted_tokens[j]) - 1
        if slot < 0:
            continue
        if bug == "first_entry_without_drafts" and end - start == 1:
            entry = 0
        state = states[slot, entry].to(wide)
        for i in range(start, end):
            state = state * decay[i][:, None, None]
            error = v[i].to(wide) - einsum("hk,hkp->hp", k[i], state)
            state = state + k[i][:, :, None] * (share[i][:, None] * error)[:, None]
            y[i] = einsum("hk,hkp->hp", q[i], state)
            if i - start < states.shape[1]:
                new_states[slot, i - start] = state
    return y, new_states


def ssd_verify(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    states: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    bug: str = "",
) -> tuple[Tensor, Tensor]:
    """Op `ssd_verify` without skips and gates, with the named bug."""
    wide, heads = torch.promote_types(x.dtype, torch.float32), x.shape[1]
    B, C = (group.to(wide).repeat_interleave(heads // group.shape[1], 1) for group in (B, C))
    step = dt.to(wide)
    y, new_states = torch.zeros_like(x), states.clone()
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        slot, entry = int(state_indices[j]), int(num_accepted_tokens[j]) - 1
        if slot < 0:
            continue
        state = states[slot, entry].to(wide)
        for i in range(start, end):
            added = einsum("h,hp,hn->hpn", step[i], x[i].to(wide), B[i])
            state = (step[i] * A.to(wide)).exp()[:, None, None] * state + added
            y[i] = einsum("hpn,hn->hp", state, C[i])
            is_skipped = bug == "no_snapshot_of_the_first_draft" and i == start and end - start > 1
            if i - start < states.shape[1] and not is_skipped:
                new_states[slot, i - start] = state
    return y, new_states


first_entry_without_drafts = partial(gated_delta_rule_verify, bug="first_entry_without_drafts")
no_snapshot_of_the_first_draft = partial(ssd_verify, bug="no_snapshot_of_the_first_draft")
