"""Binds the arguments of an op to a function without an adapter, by the field's usual names.

A parameter such as `max_seqlen` or `seq_idx` has one meaning everywhere. Its value is computed from the offsets, once
per batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packproof.adapters.adapter import Adapter
from packproof.adapters.metadata import Metadata, OfKeys, cu_seqlens, max_seqlen, once, position_ids, seq_idx
from packproof.properties.calling import call_signature, named_metadata
from packproof.properties.declarations import fixed_options

_METADATA: Mapping[str, Metadata] = {
    "cu_seqlens_q": cu_seqlens,
    "cu_seqlens_k": OfKeys(cu_seqlens),
    "max_seqlen": max_seqlen,
    "max_seqlen_q": max_seqlen,
    "max_seqlen_k": OfKeys(max_seqlen),
    "seq_idx": seq_idx,
    "position_ids": position_ids,
}


@dataclass(frozen=True)
class Binding:
    """The parameters of a function, to be bound to the arguments of an op."""

    parameters: Mapping[str, bool]
    """Whether each named parameter is required."""
    fixed: frozenset[str] = frozenset()
    """Options with a fixed value; the function does not take them."""
    by_position: Mapping[str, Any] = field(default_factory=dict)
    """The defaults of the parameters that are taken by position alone, in order."""

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> "Binding":
        if isinstance(function, Adapter):  # it takes the op's own arguments
            return cls({})
        parameters = call_signature(function).parameters
        is_required = {n: p.default is p.empty for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
        by_position = {n: p.default for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY}
        return cls(is_required, frozenset(fixed_options(function)), by_position)

    def kernel_arguments(
        self, arguments: Mapping[str, Any], count_rows: Callable[[], int]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The function's arguments, by position and by name, from the op's inputs, offsets and options.

        count_rows: returns the number of rows of the pack.
        """
        by_name = self._named_arguments(arguments, count_rows)
        return [by_name.pop(name, default) for name, default in self.by_position.items()], by_name

    def _named_arguments(self, arguments: Mapping[str, Any], count_rows: Callable[[], int]) -> dict[str, Any]:
        metadata = named_metadata(self.parameters, arguments)
        op_arguments = {n: value for n, value in arguments.items() if n not in self.fixed}
        if "cu_seqlens" not in self.parameters and {"cu_seqlens_q", "seq_idx", "position_ids"} & {*metadata}:
            del op_arguments["cu_seqlens"]
        return {**op_arguments, **{name: _metadata_value(_METADATA[name], arguments, count_rows) for name in metadata}}


def _metadata_value(make: Metadata, arguments: Mapping[str, Any], count_rows: Callable[[], int]) -> Any:
    offsets: Tensor = arguments["cu_seqlens"]
    if isinstance(make, OfKeys):
        offsets, make = arguments.get("cu_seqlens_k", offsets), make.make
    if make is cu_seqlens:
        return offsets
    if make is max_seqlen:
        return once(make, lambda: make(offsets, 0), offsets)
    count = count_rows()
    return once((make, count), lambda: make(offsets, count), offsets)
