"""Stand-ins of engines that write keys and values into a cache in place, by a slot for each token."""

from torch import Tensor

from packproof.adapters import PagedSlots, adapt
from packproof.adapters.adapter import Adapter

BUGS = (
    "padding is written to the last slot",
    "padding is written to slot 0",
    "padding ends the step",
    "values are written to the slot before",
    "the row in a page is that of the token",
)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, bug: str = ""
) -> None:
    """key, value: (t, h, d). key_cache, value_cache: (pages, size, h, d). slot_mapping: (t,), -1 for padding."""
    size, slots = key_cache.shape[1], slot_mapping.long()
    for source, cache in ((key, key_cache), (value, value_cache)):
        for token, given in enumerate(slots.tolist()):
            if given < 0 and bug == "padding ends the step":
                break
            before = bug == "values are written to the slot before" and cache is value_cache and given > 0
            slot = 0 if given < 0 and bug == "padding is written to slot 0" else given - before
            if slot < 0 and bug != "padding is written to the last slot":
                continue
            row = token % size if bug == "the row in a page is that of the token" else slot % size
            cache[slot // size, row] = source[token].to(cache.dtype)


def cache_writer(bug: str = "", size: int = 4, dense: bool = False) -> Adapter:
    names = {"k": "key", "v": "value", "k_cache": "key_cache", "v_cache": "value_cache"}
    return adapt(
        reshape_and_cache,
        op="cache_write",
        metadata={},
        slots=PagedSlots(size),
        names=names,
        in_place=("k_cache", "v_cache"),
        given={"bug": bug},
        slack=not dense,
    )
