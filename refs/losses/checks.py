"""Checks that the losses share: weights and masks."""

from math import isfinite
from typing import Any

from torch import Tensor

from packproof.base.errors import ArgumentError
from packproof.base.signatures import Signature


def finite_number(signature: Signature, name: str, value: Any) -> float:
    """The value of an option. Raises ArgumentError unless it is a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ArgumentError(f"{signature.op}: {name} is {value!r} but a finite number, 0 or more, was expected")
    return float(value)


def tokens_in_mask(signature: Signature, mask: Tensor, n: int) -> Tensor:
    """Whether each of the first n tokens counts. Raises ArgumentError for a value other than 0 and 1."""
    others = mask[:n][(mask[:n] != 0) & (mask[:n] != 1)]
    if len(others):
        raise ArgumentError(
            f"{signature.op}: mask has {int(others[0])} but 1 was expected for a token that counts, 0 for any other"
        )
    return mask[:n] == 1
