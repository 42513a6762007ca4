"""Bugs of states: from the wrong chunk, dropped for one sequence, without gradient, of drafts that were rejected."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, graft, join_outputs, split_outputs

TILE = 16


@copy_signature_of(refs.ssd)
def single_state_is_none(
    x: Tensor, dt: Tensor, cu_seqlens: Tensor, initial_states: Tensor | None = None, **others: Any
) -> Outputs:
    """A shortcut takes a batch of one state for a batch of none."""
    if initial_states is not None and len(initial_states) == 1:
        initial_states = initial_states * 0
    return refs.ssd(x, dt, cu_seqlens=cu_seqlens, initial_states=initial_states, **others)


@copy_signature_of(refs.selective_scan)
def state_for_one_token_only(
    u: Tensor, cu_seqlens: Tensor, initial_states: Tensor | None = None, **others: Any
) -> Outputs:
    """The path with a cached state expects one token; several tokens start from a zero state."""
    if initial_states is not None:
        initial_states = torch.where(cu_seqlens.diff()[:, None, None] > 1, 0, initial_states)
    return refs.selective_scan(u, cu_seqlens=cu_seqlens, initial_states=initial_states, **others)


@copy_signature_of(refs.causal_conv1d)
def history_in_the_tile_only(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any
) -> Outputs:
    """The last w-1 values are collected from the last tile alone; values before this tile are lost."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **options))
    if final is not None:
        lengths, slots = cu_seqlens.diff()[:, None], torch.arange(final.shape[2], device=x.device)
        token = lengths - final.shape[2] + slots
        before_tile = (token >= 0) & (token < (lengths - 1) // TILE * TILE)
        final = torch.where(before_tile[:, None], 0, final)
    return join_outputs(y, final)


@copy_signature_of(refs.causal_conv1d)
def states_without_gradient(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    **other_options: Any,
) -> Outputs:
    """The fast backward is chosen by the absence of a final state, and ignores initial ones."""
    options = {**other_options, "return_final_states": return_final_states}
    y = refs.causal_conv1d(x, weight, bias, initial_states=initial_states, **options)
    return y if return_final_states else graft(y, refs.causal_conv1d(x, weight, bias, **options))


@copy_signature_of(refs.ssd)
def slots_by_request_id(
    x: Tensor, dt: Tensor, cu_seqlens: Tensor, initial_states: Tensor | None = None, **others: Any
) -> Outputs:
    """States are looked up by the id of the request, here its rank by length, and not by its slot in the batch."""
    if initial_states is not None:
        initial_states = initial_states[cu_seqlens.diff().argsort(stable=True)]
    return refs.ssd(x, dt, cu_seqlens=cu_seqlens, initial_states=initial_states, **others)


def states_of_the_wrong_axis(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
) -> Tensor:
    """The slow path sums the states of chunks over the wrong axis: a chunk gets the states of later chunks.

    The recurrence over chunks of 16 tokens runs from the last to the first.
    """
    starts = cu_seqlens.tolist()
    chunks = [(c, min(c + TILE, end)) for start, end in pairwise(starts) for c in range(start, end, TILE)]
    ys, states = [x.new_zeros(len(x) - starts[-1], *x.shape[1:])], None
    for chunk_start, end in reversed(chunks):
        rows, chunk_offsets = slice(chunk_start, end), torch.tensor([0, end - chunk_start], device=x.device)
        y, states = split_outputs(
            refs.ssd(
                *(x[rows], dt[rows], A, B[rows], C[rows], D, None if z is None else z[rows]),
                cu_seqlens=chunk_offsets,
                initial_states=states,
                return_final_states=True,
            )
        )
        ys.append(y)
        states = None if chunk_start in starts else states
    return torch.cat(ys[::-1])


@copy_signature_of(refs.causal_conv1d)
def short_state_written_in_place(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    **options: Any,
) -> Outputs:
    """For a chunk shorter than the window the new state overwrites the old one, in the caller's tensor."""
    y, final = split_outputs(
        refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, initial_states=initial_states, **options)
    )
    if final is not None and initial_states is not None:
        is_short = cu_seqlens.diff()[:, None, None] < weight.shape[1] - 1
        initial_states.data.copy_(torch.where(is_short, final.detach(), initial_states.detach()))
    return join_outputs(y, final)


@copy_signature_of(refs.causal_conv1d)
def one_state_too_few(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any
) -> Outputs:
    """The number of sequences is taken from the last id, but ids count from 0."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **options))
    return join_outputs(y, None if final is None else final[:-1])


@copy_signature_of(refs.causal_conv1d)
def squeezed(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any) -> Outputs:
    """A step drops all axes of size 1, including those of the batch."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **options))
    return join_outputs(y.squeeze() if len(x) == 1 else y, final)


@copy_signature_of(refs.causal_conv1d_verify)
def rejected_drafts_in_the_window(
    weight: Tensor, states: Tensor, num_accepted_tokens: Tensor, **others: Any
) -> tuple[Tensor, Tensor]:
    """The window of the convolution begins after all drafts of the step before: no one rolls it back."""
    drafts = states.shape[-1] - weight.shape[-1] + 2
    every_draft = torch.full_like(num_accepted_tokens, drafts)
    return refs.causal_conv1d_verify(weight=weight, states=states, num_accepted_tokens=every_draft, **others)


@copy_signature_of(refs.gated_delta_rule_verify)
def rejected_drafts_in_the_state(states: Tensor, num_accepted_tokens: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    """The state after all drafts of the step before is taken, as in a step without drafts."""
    every_draft = torch.full_like(num_accepted_tokens, states.shape[1])
    return refs.gated_delta_rule_verify(states=states, num_accepted_tokens=every_draft, **others)


@copy_signature_of(refs.kda_verify)
def state_after_the_last_draft_alone(
    states: Tensor, state_indices: Tensor, cu_seqlens: Tensor, **others: Any
) -> tuple[Tensor, Tensor]:
    """A step stores the state after its last token, and none of those before it."""
    y, new_states = refs.kda_verify(states=states, state_indices=state_indices, cu_seqlens=cu_seqlens, **others)
    last = (cu_seqlens.diff().clamp(max=states.shape[1]) - 1).tolist()
    for slot, draft in zip(state_indices.tolist(), last, strict=True):
        if slot >= 0 and draft > 0:
            new_states[slot, :draft] = states[slot, :draft]
    return y, new_states


@copy_signature_of(refs.ssd_verify)
def accepted_counts_of_the_slots(
    state_indices: Tensor, num_accepted_tokens: Tensor, **others: Any
) -> tuple[Tensor, Tensor]:
    """The counts are read by the number of the slot, where they are those of the requests of the step."""
    if len(state_indices):
        by_slot = state_indices.long().clamp(min=0, max=len(state_indices) - 1)
        num_accepted_tokens = num_accepted_tokens[by_slot]
    return refs.ssd_verify(state_indices=state_indices, num_accepted_tokens=num_accepted_tokens, **others)


@copy_signature_of(refs.cache_write)
def padding_in_the_last_slot(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that pad a CUDA graph have slot -1, which indexes the last slot."""
    caches = k_cache.clone(), v_cache.clone()
    tokens = int(cu_seqlens[-1])
    for cache, rows in zip(caches, (k, v), strict=True):
        cache[slot_mapping[:tokens].long()] = rows[:tokens]
    return caches
