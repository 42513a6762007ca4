"""Messages between the judge and the process of a module: records with tensors, in frames of `wire`.

A tensor is a placeholder in the JSON value and travels beside it. A Convention is its name, a dtype its name. Every
message is checked against the annotations of its record; nothing is imported or executed for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_type_hints

import torch
from torch import Tensor

from packproof.base.names import SHORT_DTYPES
from packproof.base.records import RecordError, RecordForm
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.tested_module import TestedModule

_TENSOR = "Tensor"


@dataclass(frozen=True)
class _Message(RecordForm):
    """A record with its tensors."""

    named: bool = True
    tensors: dict[str, Tensor] = field(default_factory=dict)
    device: str = "cpu"
    """Where tensors arrive."""
    conventions: Mapping[str, Convention] = field(default_factory=dict)

    def encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            key = str(len(self.tensors))
            self.tensors[key] = value.detach().cpu()
            return {"is": _TENSOR, "key": key}
        if isinstance(value, torch.dtype):
            return str(value).removeprefix("torch.")
        return value.name if isinstance(value, Convention) else super().encode(value)

    def decode(self, kind: Any, data: Any) -> Any:
        if kind is Tensor:
            return self._tensor(data)
        if kind is torch.dtype:
            dtype = getattr(torch, data, None) if data in SHORT_DTYPES else None
            if not isinstance(dtype, torch.dtype):
                raise RecordError(f"is {str(data)[:40]!r}, expected a dtype")
            return dtype
        if kind is Convention:
            if data not in self.conventions:
                raise RecordError(f"is {str(data)[:40]!r}, expected a convention")
            return self.conventions[data]
        return super().decode(kind, data)

    def _tensor(self, data: Any) -> Tensor:
        tensor = (
            self.tensors.get(str(data.get("key"))) if isinstance(data, dict) and data.get("is") == _TENSOR else None
        )
        if tensor is None:
            raise RecordError("is no tensor")
        return tensor.to(self.device)


@dataclass(frozen=True)
class ModuleSource:
    """Where a module comes from, and how it is built."""

    target: str
    """As `load_module` takes it."""
    conventions: tuple[str, ...]
    """By name, or "module:NAME"."""
    output: str | None = None
    """The name of the output along tokens."""
    redraw: bool = True
    seed: int = 0
    without_kernels: bool = False
    """Whether packages of fast kernels appear absent."""
    matrix: bool = False
    """Whether the modes are listed in which it can run."""


@cache
def method_kinds(name: str) -> Mapping[str, Any]:
    """The annotations of a method of TestedModule, of its result as "return"."""
    return get_type_hints(getattr(TestedModule, name))


def encode_record(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """The JSON value of a record, and its tensors by their keys."""
    message = _Message()
    return message.encode(value), message.tensors


def decode_record(
    kind: Any,
    data: Any,
    tensors: Mapping[str, Tensor],
    *,
    device: str = "cpu",
    conventions: Mapping[str, Convention] | None = None,
) -> Any:
    """The record of this kind. Raises RecordError if the value does not fit.

    device: where its tensors are to be.
    conventions: by name, for the records with one.
    """
    return _Message(tensors=dict(tensors), device=device, conventions=conventions or {}).decode(kind, data)
