"""Roundings of random signs, of which `bounds.drawn_roundings` makes an error budget."""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

UNIT = 2.0**-30  # the roundoff of a copy: second-order terms vanish, and float64 still resolves the first


class Signs:
    """Random signs that go on from copy to copy, the same in each run of the same call."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def rounded(self, x: Tensor, terms: Tensor) -> Tensor:
        """x after a rounding event of the size of its absolute terms."""
        drawn = torch.rand(x.shape, generator=self._generator, dtype=torch.float32)
        return torch.add(x, torch.copysign(terms, drawn.sub_(0.5).to(x)), alpha=UNIT)

    def noisy(self, x: Tensor) -> Tensor:
        """x, rounded by its own size; so is the gradient that comes back."""
        y: Tensor = _Noisy.apply(x, self)
        return y


class _Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, signs: Signs) -> Tensor:
        ctx.signs = signs
        return signs.rounded(x, x.abs())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.signs.rounded(grads[0], grads[0].abs()), None
