"""What the arguments of a kernel mean by the usual names of the field: a guess, to be read first."""

import re

_IDS = r"_?(ids?|idx|index|indices)"
_SEQUENCE = r"(seq|sequence|seg|segment|doc|document|sample|batch)s?"
_SIDE = r"(_?(q|k|kv|query|key))?"  # of attention

_MEANINGS = {
    rf"max_?((seq|context|query|key|q|k|kv)_?)?len(gth)?s?{_SIDE}|max_s{_SIDE}|longest": "max_seqlen",
    rf"cu_?(seq|doc|len|q|k).*|cum(ulative)?_?(seq|doc|len).*|(.*_)?(offsets?|indptr|starts?|start_loc){_SIDE}|"
    rf"seq_?start{_SIDE}": "cu_seqlens",
    rf"((q|k|kv)_)?{_SEQUENCE}{_IDS}{_SIDE}": "seq_idx",
    rf"(token_|input_)?pos(itions?)?({_IDS})?": "position_ids",
    rf"(n|num)_?{_SEQUENCE}|batch_size|bsz": "num_sequences",
    rf"(n|num|total)_?(tokens|rows){_SIDE}|total_?(seq_?)?len(gth)?{_SIDE}|total_(q|k|kv)|seq_?len": "num_tokens",
    rf"(.*_)?(seq)?len(gth)?s{_SIDE}|(num_)?tokens_per_{_SEQUENCE}": "lengths",
    r"(.*_)?mask": "mask",
}
_OF_KEYS = re.compile(r"(.*_)?(k|kv|key)(_.*)?", re.IGNORECASE)

BOUNDARIES = ("cu_seqlens", "seq_idx", "position_ids", "lengths", "mask")
"""The meanings that tell a kernel where sequences end."""


def meaning_of(name: str) -> str:
    """The function of `packproof.adapters` that makes an argument of this name; "" if the name tells nothing."""
    return next((m for pattern, m in _MEANINGS.items() if re.fullmatch(pattern, name, re.IGNORECASE)), "")


def is_of_keys(name: str) -> bool:
    """Whether an argument of this name describes the keys of attention."""
    return _OF_KEYS.fullmatch(name) is not None
