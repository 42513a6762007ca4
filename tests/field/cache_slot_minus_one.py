"""Writing rows into the slots of a cache (vllm-project/vllm#43810).

Rows that only pad a CUDA graph have slot -1: the incorrect kernel writes them into the last slot.
"""

import packproof
from packproof.adapters import adapt
from packproof.refs import split_sequences


def cache_write(x, cache, slots, *, cu_seqlens):
    """x: (t, d). cache: (c, d). slots: (s,). Returns the new cache (c, d): each request writes its last token."""
    new_cache = cache.clone()
    for rows, slot in zip(split_sequences(x, cu_seqlens), slots.tolist(), strict=True):
        if slot >= 0 and len(rows):
            new_cache[slot] = rows[-1].to(new_cache.dtype)
    return new_cache


OP = packproof.Op(
    name="cache_write",
    reference=cache_write,
    inputs={"x": "t d", "cache": "c d", "slots": "s"},
    outputs={"new_cache": "c d"},
    sizes=({"d": 3, "c": "slots"},),
    draws={"slots": "slot|c"},
    constants=frozenset({"x", "cache", "slots"}),
    pool=("slots", "cache", "new_cache"),
)


def _where_a_slot_is(x, cache, slot_mapping):
    """x: (tokens, d). cache: (blocks, d), in place. slot_mapping: (tokens,)."""
    real = slot_mapping >= 0
    cache[slot_mapping.long()[real]] = x[real].to(cache.dtype)


def _at_every_row(x, cache, slot_mapping):
    cache[slot_mapping.long()] = x.to(cache.dtype)


def _adapted(function):
    names, domain = {"slots": "slot_mapping"}, ["length == 1", "slack == 0"]
    return adapt(function, op=OP, metadata={}, names=names, in_place=("cache",), domain=domain)


correct = _adapted(_where_a_slot_is)
incorrect = _adapted(_at_every_row)
