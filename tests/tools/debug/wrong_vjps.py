"""Backward passes of a convolution with bias and SiLU that are wrong, each in one way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packproof import refs

CU = torch.tensor([0, 3, 3, 8])
Change = Callable[[list[Any], Tensor, Tensor, Tensor], Sequence[Any]]


def conv(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return refs.causal_conv1d(x, weight, bias, activation="silu", cu_seqlens=CU)


def with_gradients(change: Change) -> Callable[..., Any]:
    """The convolution, with the gradients of x, weight and bias as `change` makes them of the correct ones."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            ctx.save_for_backward(*inputs)
            return conv(*inputs)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            with torch.enable_grad():
                found = list(torch.autograd.grad(conv(*inputs), inputs, dy))
            return tuple(change(found, dy, inputs[0].detach(), inputs[1].detach()))

    apply: Callable[..., Any] = Changed.apply
    return apply


def scaled(factor: float) -> Change:
    return lambda g, dy, x, weight: [factor * a for a in g]


def row(which: int, index: int, factor: float) -> Change:
    """One row of one gradient off by a factor: a token of x, a channel of the weight."""

    def change(g: list[Any], dy: Tensor, x: Tensor, weight: Tensor) -> list[Any]:
        g[which] = torch.where(torch.arange(len(g[which])).view(-1, 1) == index, factor * g[which], g[which])
        return g

    return change


def missing(which: int) -> Change:
    return lambda g, dy, x, weight: [None if i == which else a for i, a in enumerate(g)]


def leak(share: float) -> Change:
    """The last token of sequence 0 gets a part of what belongs to the first of sequence 2."""

    def change(g: list[Any], dy: Tensor, x: Tensor, weight: Tensor) -> list[Any]:
        more = torch.zeros_like(g[0])
        more[2] = share * dy[3] * weight[:, 0]
        return [g[0] + more, *g[1:]]

    return change


def element(which: int, index: tuple[int, ...], factor: float) -> Change:
    def change(g: list[Any], dy: Tensor, x: Tensor, weight: Tensor) -> list[Any]:
        g[which] = g[which].clone()
        g[which][index] *= factor
        return g

    return change


WRONG: Mapping[str, Change] = {
    **{f"all x {k}": scaled(k) for k in (1.01, 1.02, 1.05, 0.99, 0.95, 0.5, 2.0, 10.0, 0.0, -1.0, -100.0)},
    **{f"token {i} x {k}": row(0, i, k) for i, k in ((0, 1.01), (3, 2.0), (7, 0.0), (5, -1.0), (2, 1.1), (6, 0.9))},
    **{f"channel 1 of weight x {k}": row(1, 1, k) for k in (1.01, 2.0, 0.0)},
    **{f"no gradient of {name}": missing(i) for i, name in enumerate(("x", "weight", "bias"))},
    **{f"leak x {share}": leak(share) for share in (1.0, 0.1, -0.5, 0.02)},
    "one element of x": element(0, (4, 1), 2.0),
    "one element of weight": element(1, (2, 2), 0.5),
    "one element of bias": element(2, (3,), 1.01),
    "tokens reversed": lambda g, dy, x, weight: [g[0].flip(0), g[1], g[2]],
}
