"""Where two calls of a model first differ, without keeping activations: one checksum per token and module."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from packproof.harness.modules.isolation import first_that_leaks
from packproof.harness.modules.watch import tensors_in, watched


@dataclass
class _Call:
    name: str
    given: list["_Sums"]
    gave: list["_Sums"]


@dataclass
class _Sums:
    """One checksum per token of a tensor."""

    values: Tensor
    unit: float
    """By how much one rounding of the tensor can change a checksum."""


def first_difference(model: nn.Module, one: Callable[[], Any], other: Callable[[], Any], keep: Tensor) -> str:
    """The innermost module with equal inputs and different outputs at these tokens; "" if there is none.

    It is named as "layers.0.conv (Conv1d)".

    first_call: calls the model once.
    second_call: calls the model once.
    keep: bool (b, t), the compared tokens.
    """

    def traced(call: Callable[[], Any]) -> list[_Call]:
        with watched(model, begin, end) as ended:
            call()
        return ended

    def begin(name: str, module: nn.Module, given: Any) -> _Call:
        return _Call(f"{name or 'the model itself'} ({type(module).__name__})", _checksums(given, keep), [])

    def end(call: _Call, out: Any) -> None:
        call.gave = _checksums(out, keep)

    def leaks(a: _Call, b: _Call, roundings: int) -> bool:
        same = a.name == b.name and _equal(a.given, b.given, roundings)
        return same and not _equal(a.gave, b.gave, roundings)

    found = first_that_leaks(traced(one), traced(other), leaks)
    return found.name if found else ""


def _checksums(value: Any, keep: Tensor) -> list[_Sums]:
    """One number per kept token, for each tensor with tokens along its first axes."""
    rows, t = keep.shape
    found = []
    for x in tensors_in(value):
        if x.shape[:2] == (rows, t):
            found.append(_sums(x.detach().reshape(rows * t, -1)[keep.flatten().to(x.device)]))
        elif rows == 1 and x.dim() and x.shape[0] == t:
            found.append(_sums(x.detach().reshape(t, -1)[keep[0].to(x.device)]))
        elif rows == 1 and x.dim() == 3 and x.shape[0] == 1 and x.shape[2] >= t:  # Conv1d: channels first, with padding
            found.append(_sums(x.detach()[0, :, :t].mT[keep[0].to(x.device)]))
    return found


def _sums(x: Tensor) -> _Sums:
    wide = x.double().nan_to_num()
    weight = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=torch.float64).sin()
    roundoff = torch.finfo(x.dtype).eps / 2 if x.is_floating_point() else 0.0
    largest = float((wide.abs() @ weight.abs()).max()) if wide.numel() else 0.0
    return _Sums(wide @ weight, roundoff * largest)


def _equal(one: list[_Sums], other: list[_Sums], roundings: int) -> bool:
    return len(one) == len(other) and all(
        a.values.shape == b.values.shape and bool(((a.values - b.values).abs() <= roundings * a.unit).all())
        for a, b in zip(one, other, strict=True)
    )
