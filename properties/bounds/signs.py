"""Roundings of random signs, from which `bounds.drawn_roundings` makes an error budget."""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

UNIT = 2.0**-30  # the roundoff of a copy: second-order terms vanish, and float64 still resolves the first


class Signs:
    """Random signs. Each copy continues the sequence, and each run of the same call draws the same one.

    unit: the roundoff of a copy.
    smallest_normal: the smallest normal number of the operands' dtype; a smaller operand is rounded as this one.
    underflowed: an operand was smaller than `smallest_normal`.
    """

    def __init__(self, unit: float = UNIT, least: float = 0.0) -> None:
        self.unit, self.least, self.underflowed = unit, least, False
        self._generator = torch.Generator().manual_seed(0)

    def rounded(self, x: Tensor, terms: Tensor) -> Tensor:
        """x after a rounding event as large as its absolute terms."""
        drawn = torch.rand(x.shape, generator=self._generator, dtype=torch.float32)
        return torch.add(x, torch.copysign(terms, drawn.sub_(0.5).to(x)), alpha=self.unit)

    def noisy(self, x: Tensor) -> Tensor:
        """x, rounded in proportion to its magnitude; its gradient likewise."""
        y: Tensor = _Noisy.apply(x, self)
        return y

    def operand(self, x: Tensor) -> Tensor:
        """x rounded as an operand of a product, by precision and range of its dtype. Zero and infinity are exact."""
        size = x.detach().abs()
        self.underflowed |= bool(((size > 0) & (size < self.least)).any())
        return self.rounded(x, torch.where((size > 0) & size.isfinite(), size.clamp(min=self.least), 0))


class _Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, signs: Signs) -> Tensor:
        ctx.signs = signs
        return signs.operand(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.signs.operand(grads[0]), None
