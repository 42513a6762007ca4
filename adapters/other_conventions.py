"""Alternative declarations of an adapter. If one of them passes where the declared one fails, the report names it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packproof.adapters.conversions import Conversion, L2Norm, Scaled, base2_log, describe, natural_log
from packproof.adapters.metadata import (
    Metadata,
    cu_seqlens,
    cu_seqlens_int32,
    cu_seqlens_int64,
    lengths,
    mask,
    position_ids,
    seq_idx,
)
from packproof.adapters.tokens import Batched, Packed, Padded, Tokens
from packproof.properties.op import Op
from packproof.refs.axes import parse, role

Change = tuple[str, dict[str, Any]]  # its text as an argument of `adapt`, and the changed fields of the adapter

_FAMILIES: tuple[tuple[Tokens, ...], ...] = (
    (Packed(), Packed(1), Packed(-1), Batched(), Batched(2), Batched(-1)),
    (Padded(), Padded(2), Padded(-1)),
)
_ALIKE: Mapping[str, tuple[Metadata, ...]] = {
    "offsets": (cu_seqlens, cu_seqlens_int32, cu_seqlens_int64, lengths),
    "rows": (seq_idx, position_ids, mask),
}
_NAMES: Mapping[Metadata, str] = {seq_idx: "seq_idx", position_ids: "position_ids", mask: "mask"}
_SCALES = (Scaled("width ** -0.5"), Scaled("width ** 0.5"))
_OF_INPUTS: tuple[Conversion, ...] = (base2_log, natural_log, L2Norm(), torch.sigmoid, *_SCALES)
_OF_OUTPUTS: tuple[Conversion, ...] = (natural_log, base2_log, *_SCALES)


def other_conventions(
    op: Op,
    tokens: Tokens,
    metadata: Mapping[str, Metadata],
    axes: Mapping[str, str],
    converted: Mapping[str, Conversion],
) -> Iterator[Change]:
    """Changes of one argument at a time. Tensors with the same axes, such as both states, also change together."""
    for family in _FAMILIES:
        for other in family if tokens in family else ():
            if other != tokens:
                yield f"tokens={other}", {"tokens": other}
    for name, make in metadata.items():
        for group in _ALIKE.values():
            for change in group if make in group else ():
                if change is not make:
                    text = _NAMES.get(change) or describe(change)
                    yield f"metadata={{{name!r}: {text}}}", {"metadata": {**metadata, name: change}}
    for names in _together(op, {**op.inputs, **op.outputs}):
        for turned in _turned(op, names, axes):
            words = _written("axes", turned or dict.fromkeys(names), axes, repr)
            yield words, {"axes": {**_without(axes, names), **turned}}
    for some, functions in ((op.inputs, _OF_INPUTS), (op.outputs, _OF_OUTPUTS)):
        for names in _together(op, some):
            for chosen in _conversions(names, functions, converted):
                every = {**_without(converted, names), **chosen}
                yield _written("converted", chosen or dict.fromkeys(names), converted, describe), {"converted": every}


def _together(op: Op, specs: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Each tensor alone, and the groups of tensors with the same axes. Tables are left out."""
    names = [n for n in specs if n not in op.constants]
    yield from ((n,) for n in names)
    forms: dict[str, list[str]] = {}
    for n in names:
        forms.setdefault(specs[n].rstrip("?"), []).append(n)
    yield from (tuple(alike) for alike in forms.values() if len(alike) > 1)


def _turned(op: Op, names: tuple[str, ...], axes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """New axes for states and parameters: the last two swapped, or {} for the op's own order if another is declared."""
    ours = parse({**op.inputs, **op.outputs}[names[0]]).alternatives[-1]
    if any(n in axes for n in names):
        yield {}
    elif role(ours) != "token" and len(ours) >= (3 if role(ours) == "sequence" else 2):
        yield dict.fromkeys(names, " ".join((*ours[:-2], ours[-1], ours[-2])))


def _conversions(
    names: tuple[str, ...], functions: tuple[Conversion, ...], converted: Mapping[str, Conversion]
) -> Iterator[dict[str, Conversion]]:
    """{} for converted tensors, to convert none of them; each function for the others."""
    if any(n in converted for n in names):
        yield {}
    else:
        yield from (dict.fromkeys(names, function) for function in functions)


def _without(declared: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {n: value for n, value in declared.items() if n not in names}


def _written(argument: str, changes: Mapping[str, Any], declared: Mapping[str, Any], show: Any) -> str:
    """The change as an argument of `adapt`."""
    entries = {n: value for n, value in changes.items() if value is not None}
    if entries:
        return f"{argument}={{{', '.join(f'{n!r}: {show(value)}' for n, value in entries.items())}}}"
    return f"no {argument} for {' and '.join(n for n in changes if n in declared)}"
