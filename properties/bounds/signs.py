"""Roundings of random signs, from which `bounds.drawn_roundings` makes an error budget."""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

COPY_ROUNDOFF = 2.0**-30  # the roundoff of a copy: second-order terms vanish, and float64 still resolves the first


class Signs:
    """Random signs. Each copy continues the sequence, and each run of the same call draws the same one.

    unit: the roundoff of a copy.
    smallest_normal: the smallest normal number of the operands' dtype; a smaller operand is rounded as this one.
    underflow_only: an operand has only what it is rounded by beyond its own precision, as a subnormal number.
    underflowed: an operand was smaller than `smallest_normal`.
    """

    def __init__(
        self, unit: float = COPY_ROUNDOFF, smallest_normal: float = 0.0, *, underflow_only: bool = False
    ) -> None:
        self.unit, self.smallest_normal, self.underflowed = unit, smallest_normal, False
        self.underflow_only = underflow_only
        self._generator = torch.Generator().manual_seed(0)

    def rounded(self, x: Tensor, terms: Tensor) -> Tensor:
        """x after a rounding event as large as its absolute terms."""
        uniform = torch.rand(x.shape, generator=self._generator, dtype=torch.float32)
        return torch.add(x, torch.copysign(terms, uniform.sub_(0.5).to(x)), alpha=self.unit)

    def noisy(self, x: Tensor) -> Tensor:
        """x, rounded in proportion to its magnitude; its gradient likewise."""
        y: Tensor = _Noise.apply(x, self)
        return y

    def noisy_gradient(self, x: Tensor) -> Tensor:
        """x itself; its gradient is rounded in proportion to its magnitude."""
        y: Tensor = _GradientNoise.apply(x, self)
        return y

    def operand(self, x: Tensor) -> Tensor:
        """x rounded as an operand of a product, by precision and range of its dtype. Zero and infinity are exact."""
        magnitude = x.detach().abs()
        self.underflowed |= bool(((magnitude > 0) & (magnitude < self.smallest_normal)).any())
        terms = magnitude.clamp(min=self.smallest_normal)
        terms = terms - magnitude if self.underflow_only else terms
        return self.rounded(x, torch.where((magnitude > 0) & magnitude.isfinite(), terms, 0))


class _GradientNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, signs: Signs) -> Tensor:
        ctx.signs = signs
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.signs.operand(grads[0]), None


class _Noise(_GradientNoise):
    @staticmethod
    def forward(ctx: Any, x: Tensor, signs: Signs) -> Tensor:
        ctx.signs = signs
        return signs.operand(x)
