"""The line to paste for a kernel that cannot be called by the op's names: a guess, to be read before it is used."""

import re
from collections.abc import Sequence

_OFFSETS = re.compile(r"cu_?|offset|indptr|starts", re.IGNORECASE)
_LENGTHS = re.compile(r"len", re.IGNORECASE)


def _made(name: str) -> str:
    """The metadata that an argument of this name may be, "" where it is none that is known."""
    if name in ("seq_idx", "position_ids"):
        return name
    if name.startswith("cu_seqlens"):
        return "cu_seqlens"
    if _LENGTHS.search(name):
        return "max_seqlen" if name.startswith("max") else "lengths"
    return ""


def suggested_adapter(target: str, op: str, absent: Sequence[str], unknown: Sequence[str]) -> str:
    """An `adapt` that gives the op's arguments that the kernel does not name to what it requires instead.

    absent: the op's arguments, in order. unknown: the kernel's.
    """
    remaining, metadata = list(unknown), dict[str, str]()
    if "cu_seqlens" in absent:
        offsets = next((name for name in remaining if _OFFSETS.search(name)), None)
        if offsets is not None:
            metadata[offsets] = "cu_seqlens"
            remaining.remove(offsets)
    else:
        metadata["cu_seqlens"] = "cu_seqlens"
    for name in unknown:
        if name in remaining and (make := _made(name)):
            metadata[name] = make
            remaining.remove(name)
    inputs = [name for name in absent if name != "cu_seqlens"]
    names = dict(zip(inputs, remaining, strict=False))
    given = remaining[len(names) :]
    parts = [
        f"names={{{', '.join(f'{ours!r}: {theirs!r}' for ours, theirs in names.items())}}}" if names else "",
        f"metadata={{{', '.join(f'{name!r}: {make}' for name, make in metadata.items())}}}" if metadata else "",
        f"given={{{', '.join(f'{name!r}: ...' for name in given)}}}" if given else "",
    ]
    return f"adapt({', '.join([repr(target), f'op={op!r}', *filter(None, parts)])})"
