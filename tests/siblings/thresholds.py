"""Kernels that end at a number of their source: channels, vocabulary, head width, requests, slots, keys, rows.

`correct_*` has the same number, where it ends nothing.
"""

from itertools import pairwise

import torch

import packproof
from packproof import refs

BLOCK_D, BLOCK_V, BLOCK_K, MAX_REQUESTS, MAX_SLOTS, MAX_KEYS = 256, 1024, 128, 64, 256, 512


def correct_channels(x, weight, *, cu_seqlens):
    """A convolution over blocks of channels."""
    blocks = zip(x.split(BLOCK_D, 1), weight.split(BLOCK_D), strict=True)
    return torch.cat([refs.causal_conv1d(a, b, cu_seqlens=cu_seqlens) for a, b in blocks], 1)


def incorrect_channels(x, weight, *, cu_seqlens):
    """The first block alone: all models of the tests are narrower."""
    y = refs.causal_conv1d(x[:, :BLOCK_D], weight[:BLOCK_D], cu_seqlens=cu_seqlens)
    return torch.nn.functional.pad(y, (0, x.shape[1] - y.shape[1]))


def _logprobs(logits, labels, cu_seqlens, ignore_index, blocks):
    n = int(cu_seqlens[-1])
    y, wide = labels[:n].long(), torch.promote_types(logits.dtype, torch.float32)
    rows = logits[:n].to(wide)
    parts = [part.logsumexp(-1) for part in rows.split(BLOCK_V, 1)][:blocks]
    counts = y != ignore_index
    target = rows.gather(1, torch.where(counts, y, 0)[:, None])[:, 0]
    logprobs = torch.where(counts, target - torch.stack(parts).logsumexp(0), 0)
    return torch.nn.functional.pad(logprobs, (0, len(logits) - n))


def correct_vocabulary(logits, labels, *, cu_seqlens, ignore_index=-100):
    """Sums over blocks of the vocabulary."""
    return _logprobs(logits, labels, cu_seqlens, ignore_index, None)


def incorrect_vocabulary(logits, labels, *, cu_seqlens, ignore_index=-100):
    """The sum over the first block."""
    return _logprobs(logits, labels, cu_seqlens, ignore_index, 1)


def correct_width(q, k, v, *, cu_seqlens, causal=False):
    """Scores over tiles of the head."""
    scale = max(q.shape[-1], 1) ** -0.5
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal, softmax_scale=scale)


def incorrect_width(q, k, v, *, cu_seqlens, causal=False):
    """The first tile of the head."""
    scale = max(q.shape[-1], 1) ** -0.5
    q, k = (x[..., :BLOCK_K] for x in (q, k))
    return refs.attention(q, k, v, cu_seqlens=cu_seqlens, causal=causal, softmax_scale=scale)


def _update(x, weight, states, state_indices, cu_seqlens, most_requests):
    y, new_states, wide = torch.zeros_like(x), states.clone(), torch.promote_types(x.dtype, torch.float32)
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        slot = int(state_indices[j])
        if slot < 0 or start == end or (most_requests and j >= most_requests):
            continue
        inputs = torch.cat([states[slot].to(x.dtype), x[start:end].T], 1)
        y[start:end] = (inputs.to(wide).unfold(1, weight.shape[1], 1) * weight.to(wide)[:, None]).sum(-1).T
        new_states[slot] = inputs[:, inputs.shape[1] - states.shape[2] :]
    return y, new_states


def correct_requests(x, weight, *, states, state_indices, cu_seqlens):
    """A step of a server, in launches of MAX_REQUESTS."""
    assert MAX_REQUESTS
    return _update(x, weight, states, state_indices, cu_seqlens, 0)


def incorrect_requests(x, weight, *, states, state_indices, cu_seqlens):
    """The requests of the first launch."""
    return _update(x, weight, states, state_indices, cu_seqlens, MAX_REQUESTS)


def _write(k, v, k_cache, v_cache, slot_mapping, cu_seqlens, most_slots):
    caches, n = (k_cache.clone(), v_cache.clone()), int(cu_seqlens[-1])
    slots = slot_mapping[:n].long()
    written = (slots >= 0) & (slots < (most_slots or len(k_cache)))
    for cache, rows in zip(caches, (k, v), strict=True):
        cache[slots[written]] = rows[:n][written].to(cache.dtype)
    return caches


def correct_slots(k, v, k_cache, v_cache, slot_mapping, *, cu_seqlens):
    assert MAX_SLOTS
    return _write(k, v, k_cache, v_cache, slot_mapping, cu_seqlens, 0)


def incorrect_slots(k, v, k_cache, v_cache, slot_mapping, *, cu_seqlens):
    """A table of MAX_SLOTS slots."""
    return _write(k, v, k_cache, v_cache, slot_mapping, cu_seqlens, MAX_SLOTS)


def _decode(q, k, v, cu_seqlens, cu_seqlens_k, most_keys):
    group, wide = q.shape[1] // k.shape[1], torch.promote_types(q.dtype, torch.float32)
    y = q.new_zeros(*q.shape[:2], v.shape[2])
    for (a, b), (c, d) in zip(pairwise(cu_seqlens.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True):
        keys = slice(c, min(d, c + most_keys) if most_keys else d)
        kk, vv = (x[keys].to(wide).repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("ihk,jhk->hij", q[a:b].to(wide), kk) * max(q.shape[2], 1) ** -0.5
        y[a:b] = torch.einsum("hij,jhv->ihv", scores.softmax(-1), vv).to(q.dtype)
    return y


@packproof.kernel(op="attention", domain=["length == 1", "slack == 0"], gradients=False)
def correct_keys(q, k, v, *, cu_seqlens, cu_seqlens_k):
    """Decode attention over pages, of which a table has enough."""
    assert MAX_KEYS
    return _decode(q, k, v, cu_seqlens, cu_seqlens_k, 0)


@packproof.kernel(op="attention", domain=["length == 1", "slack == 0"], gradients=False)
def incorrect_keys(q, k, v, *, cu_seqlens, cu_seqlens_k):
    """A table of MAX_KEYS keys."""
    return _decode(q, k, v, cu_seqlens, cu_seqlens_k, MAX_KEYS)


def _by_rows(x, weight, cu_seqlens, integer):
    """A convolution whose taps are addressed by rows of the pack, in integers of some width."""
    rows, n, wide = torch.arange(len(x)), int(cu_seqlens[-1]), torch.promote_types(x.dtype, torch.float32)
    starts = torch.repeat_interleave(cu_seqlens[:-1].long(), cu_seqlens.diff().long())
    starts = torch.nn.functional.pad(starts, (0, len(x) - n), value=len(x))
    narrow, inputs, y = rows.to(integer), x.to(wide), torch.zeros_like(x, dtype=wide)
    for tap in range(weight.shape[1]):
        source = (narrow - (weight.shape[1] - 1 - tap)).long()
        taken = torch.where((source >= starts)[:, None], inputs[source.clamp(min=0)], 0)
        y = y + taken * weight[:, tap].to(wide)
    return torch.where((rows < n)[:, None], y, 0).to(x.dtype)


def correct_integers(x, weight, *, cu_seqlens):
    return _by_rows(x, weight, cu_seqlens, torch.int32)


def incorrect_integers(x, weight, *, cu_seqlens):
    """Rows in 16 bits."""
    return _by_rows(x, weight, cu_seqlens, torch.int16)
