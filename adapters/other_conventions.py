"""Alternative declarations of an adapter. If one of them passes where the declared one fails, the report names it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packproof.adapters.conversions import Conversion, L2Norm, Scaled, base2_log, conversion_text, natural_log
from packproof.adapters.metadata import (
    Metadata,
    cu_seqlens,
    cu_seqlens_int32,
    cu_seqlens_int64,
    lengths,
    mask,
    position_ids,
    segment_ids,
    seq_idx,
)
from packproof.adapters.tokens import Batched, Packed, Padded, Tokens
from packproof.base.axes import parse, role
from packproof.properties.ops import Op

Change = tuple[str, dict[str, Any]]  # its text as an argument of `adapt`, and the changed fields of the adapter

_TOKEN_LAYOUTS: tuple[tuple[Tokens, ...], ...] = (
    (Packed(), Packed(1), Packed(-1), Batched(), Batched(2), Batched(-1)),
    (Padded(), Padded(2), Padded(-1)),
)
_METADATA_GROUPS: Mapping[str, tuple[Metadata, ...]] = {
    "offsets": (cu_seqlens, cu_seqlens_int32, cu_seqlens_int64, lengths),
    "rows": (seq_idx, segment_ids, position_ids, mask),
}
_METADATA_NAMES: Mapping[Metadata, str] = {
    seq_idx: "seq_idx",
    segment_ids: "segment_ids",
    position_ids: "position_ids",
    mask: "mask",
}
_SCALES = (Scaled("width ** -0.5"), Scaled("width ** 0.5"))
_INPUT_CONVERSIONS: tuple[Conversion, ...] = (base2_log, natural_log, L2Norm(), torch.sigmoid, *_SCALES)
_OUTPUT_CONVERSIONS: tuple[Conversion, ...] = (natural_log, base2_log, *_SCALES)


def other_conventions(
    op: Op,
    tokens: Tokens,
    metadata: Mapping[str, Metadata],
    axes: Mapping[str, str],
    converted: Mapping[str, Conversion],
) -> Iterator[Change]:
    """Changes of one argument at a time. Tensors with the same axes, such as both states, also change together."""
    for family in _TOKEN_LAYOUTS:
        for layout in family if tokens in family else ():
            if layout != tokens:
                yield f"tokens={layout}", {"tokens": layout}
    for name, make in metadata.items():
        for group in _METADATA_GROUPS.values():
            for substitute in group if make in group else ():
                if substitute is not make:
                    metadata_name = _METADATA_NAMES.get(substitute) or conversion_text(substitute)
                    yield f"metadata={{{name!r}: {metadata_name}}}", {"metadata": {**metadata, name: substitute}}
    for names in _tensor_groups(op, {**op.inputs, **op.outputs}):
        for new_axes in _swapped_axes(op, names, axes):
            description = _change_text("axes", new_axes or dict.fromkeys(names), axes, repr)
            yield description, {"axes": {**_without_names(axes, names), **new_axes}}
    for specs, functions in ((op.inputs, _INPUT_CONVERSIONS), (op.outputs, _OUTPUT_CONVERSIONS)):
        for names in _tensor_groups(op, specs):
            for new_conversions in _candidate_conversions(names, functions, converted):
                all_conversions = {**_without_names(converted, names), **new_conversions}
                yield (
                    _change_text("converted", new_conversions or dict.fromkeys(names), converted, conversion_text),
                    {"converted": all_conversions},
                )


def _tensor_groups(op: Op, specs: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Each tensor alone, and the groups of tensors with the same axes. Tables are left out."""
    names = [n for n in specs if n not in op.constants]
    yield from ((n,) for n in names)
    forms: dict[str, list[str]] = {}
    for n in names:
        forms.setdefault(specs[n].rstrip("?"), []).append(n)
    yield from (tuple(group) for group in forms.values() if len(group) > 1)


def _swapped_axes(op: Op, names: tuple[str, ...], axes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """New axes for states and parameters: the last two swapped, or {} for the op's own order if another is declared."""
    op_axes = parse({**op.inputs, **op.outputs}[names[0]]).alternatives[-1]
    if any(n in axes for n in names):
        yield {}
    elif role(op_axes) != "token" and len(op_axes) >= (3 if role(op_axes) == "sequence" else 2):
        yield dict.fromkeys(names, " ".join((*op_axes[:-2], op_axes[-1], op_axes[-2])))


def _candidate_conversions(
    names: tuple[str, ...], functions: tuple[Conversion, ...], converted: Mapping[str, Conversion]
) -> Iterator[dict[str, Conversion]]:
    """{} for converted tensors, to convert none of them; each function for the others."""
    if any(n in converted for n in names):
        yield {}
    else:
        yield from (dict.fromkeys(names, function) for function in functions)


def _without_names(declaration: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {n: value for n, value in declaration.items() if n not in names}


def _change_text(argument: str, changes: Mapping[str, Any], declaration: Mapping[str, Any], format_value: Any) -> str:
    """The change as an argument of `adapt`."""
    entries = {n: value for n, value in changes.items() if value is not None}
    if entries:
        return f"{argument}={{{', '.join(f'{n!r}: {format_value(value)}' for n, value in entries.items())}}}"
    return f"no {argument} for {' and '.join(n for n in changes if n in declaration)}"
