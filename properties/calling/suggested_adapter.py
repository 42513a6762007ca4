"""Suggests an `adapt(...)` line for a kernel with other argument names than the op's: a guess, to be read first."""

import re
from collections.abc import Sequence

_OFFSETS = re.compile(r"cu_?|offset|indptr|starts", re.IGNORECASE)
_LENGTHS = re.compile(r"len", re.IGNORECASE)


def _likely_metadata(name: str) -> str:
    """The likely metadata of an argument with this name, "" if there is none."""
    if name in ("seq_idx", "position_ids"):
        return name
    if name.startswith("cu_seqlens"):
        return "cu_seqlens"
    if _LENGTHS.search(name):
        return "max_seqlen" if name.startswith("max") else "lengths"
    return ""


def suggested_adapter(target: str, op: str, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """An `adapt` line that maps the missing arguments of the op to the unexpected ones of the kernel.

    missing: the op's arguments unknown to the kernel, in order.
    unexpected: the kernel's required arguments unknown to the op.
    """
    remaining, metadata = list(unexpected), dict[str, str]()
    if "cu_seqlens" in missing:
        offsets = next((name for name in remaining if _OFFSETS.search(name)), None)
        if offsets is not None:
            metadata[offsets] = "cu_seqlens"
            remaining.remove(offsets)
    else:
        metadata["cu_seqlens"] = "cu_seqlens"
    for name in unexpected:
        if name in remaining and (metadata_name := _likely_metadata(name)):
            metadata[name] = metadata_name
            remaining.remove(name)
    inputs = [name for name in missing if name != "cu_seqlens"]
    names = dict(zip(inputs, remaining, strict=False))
    constants = remaining[len(names) :]
    parts = [
        f"names={{{', '.join(f'{op_name!r}: {kernel_name!r}' for op_name, kernel_name in names.items())}}}"
        if names
        else "",
        f"metadata={{{', '.join(f'{name!r}: {metadata_name}' for name, metadata_name in metadata.items())}}}"
        if metadata
        else "",
        f"given={{{', '.join(f'{name!r}: ...' for name in constants)}}}" if constants else "",
    ]
    return f"adapt({', '.join([repr(target), f'op={op!r}', *filter(None, parts)])})"
