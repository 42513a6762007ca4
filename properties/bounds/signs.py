"""Roundings of random signs, of which `bounds.drawn_roundings` makes an error budget."""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

UNIT = 2.0**-30  # the roundoff of a copy: second-order terms vanish, and float64 still resolves the first


class Signs:
    """Random signs that go on from copy to copy, the same in each run of the same call.

    unit: the roundoff of a copy.
    least: what an operand counts at least when it is rounded: the smallest normal number of its dtype.
    underflowed: whether an operand was smaller than that.
    """

    def __init__(self, unit: float = UNIT, least: float = 0.0) -> None:
        self.unit, self.least, self.underflowed = unit, least, False
        self._generator = torch.Generator().manual_seed(0)

    def rounded(self, x: Tensor, terms: Tensor) -> Tensor:
        """x after a rounding event of the size of its absolute terms."""
        drawn = torch.rand(x.shape, generator=self._generator, dtype=torch.float32)
        return torch.add(x, torch.copysign(terms, drawn.sub_(0.5).to(x)), alpha=self.unit)

    def noisy(self, x: Tensor) -> Tensor:
        """x, rounded by its own size; so is the gradient that comes back."""
        y: Tensor = _Noisy.apply(x, self)
        return y

    def operand(self, x: Tensor) -> Tensor:
        """x as the operand of a product, which an exponent of its dtype has to hold; zero and infinity are exact."""
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
