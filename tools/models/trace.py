"""Where two calls of a model first differ, without keeping activations: one checksum per token and module."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from packproof.models.laws.isolation import first_leaking_visit
from packproof.models.subjects.watch import tensors_in, watch_modules


@dataclass
class _Call:
    name: str
    inputs: list["_Checksum"]
    outputs: list["_Checksum"]


@dataclass
class _Checksum:
    """One checksum per token of a tensor."""

    values: Tensor
    unit: float
    """By how much one rounding of the tensor can change a checksum."""


def first_difference(
    model: nn.Module, first_call: Callable[[], Any], second_call: Callable[[], Any], keep: Tensor
) -> str:
    """The innermost module with equal inputs and different outputs at these tokens; "" if there is none.

    It is named as "layers.0.conv (Conv1d)".

    first_call: calls the model once.
    second_call: calls the model once.
    keep: bool (b, t), the compared tokens.
    """

    def trace_call(call: Callable[[], Any]) -> list[_Call]:
        with watch_modules(model, begin, end) as calls:
            call()
        return calls

    def begin(name: str, module: nn.Module, call_arguments: Any) -> _Call:
        return _Call(f"{name or 'the model itself'} ({type(module).__name__})", _checksums(call_arguments, keep), [])

    def end(call: _Call, out: Any) -> None:
        call.outputs = _checksums(out, keep)

    def leaks(a: _Call, b: _Call, roundings: int) -> bool:
        same_inputs = a.name == b.name and _checksums_agree(a.inputs, b.inputs, roundings)
        return same_inputs and not _checksums_agree(a.outputs, b.outputs, roundings)

    leaking_call = first_leaking_visit(trace_call(first_call), trace_call(second_call), leaks)
    return leaking_call.name if leaking_call else ""


def _checksums(value: Any, keep: Tensor) -> list[_Checksum]:
    """One number per kept token, for each tensor with tokens along its first axes."""
    rows, t = keep.shape
    checksums = []
    for x in tensors_in(value):
        if x.shape[:2] == (rows, t):
            checksums.append(_checksum(x.detach().reshape(rows * t, -1), keep.flatten()))
        elif rows == 1 and x.dim() and x.shape[0] == t:
            checksums.append(_checksum(x.detach().reshape(t, -1), keep[0]))
        elif rows == 1 and x.dim() == 3 and x.shape[0] == 1 and x.shape[2] >= t:  # Conv1d: channels first, with padding
            checksums.append(_checksum(x.detach()[0, :, :t].mT, keep[0]))
    return checksums


def _checksum(x: Tensor, keep: Tensor) -> _Checksum:
    weight = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=torch.float64).sin()
    kept_rows = x[keep.to(x.device)].double().nan_to_num()
    roundoff = torch.finfo(x.dtype).eps / 2 if x.is_floating_point() else 0.0
    largest = _largest_sum(kept_rows, weight) or _largest_sum(x.double().nan_to_num(), weight)  # zeros have no rounding
    return _Checksum(kept_rows @ weight, roundoff * largest)


def _largest_sum(rows: Tensor, weight: Tensor) -> float:
    return float((rows.abs() @ weight.abs()).max()) if rows.numel() else 0.0


def _checksums_agree(first_checksums: list[_Checksum], second_checksums: list[_Checksum], roundings: int) -> bool:
    return len(first_checksums) == len(second_checksums) and all(
        a.values.shape == b.values.shape and bool(((a.values - b.values).abs() <= roundings * a.unit).all())
        for a, b in zip(first_checksums, second_checksums, strict=True)
    )
