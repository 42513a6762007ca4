"""Correct orders in which a kernel sums gates over a chunk, and the gradients of these sums."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Order = Callable[[Tensor], Tensor]
"""Running sums along the first axis: of each row and all before it."""

_BLOCK = 4


def sequential(x: Tensor) -> Tensor:
    total, sums = torch.zeros_like(x[:1]), [x[:0]]
    for row in x.split(1):
        total = total + row
        sums.append(total)
    return torch.cat(sums)


def reversed_terms(x: Tensor) -> Tensor:
    """Each sum by itself, from its last term to the first."""
    return torch.cat([x[:0], *(sequential(x[: t + 1].flip(0))[-1:] for t in range(len(x)))])


def tree(x: Tensor) -> Tensor:
    """Hillis and Steele: after each step a row holds twice as many terms."""
    reach = 1
    while reach < len(x):
        x = torch.cat([x[:reach], x[reach:] + x[:-reach]])
        reach *= 2
    return x


def blocks(x: Tensor) -> Tensor:
    """Inside blocks, then the totals of the blocks before."""
    total, sums = torch.zeros_like(x[:1]), [x[:0]]
    for block in x.split(_BLOCK):
        inside = sequential(block)
        sums.append(inside + total)
        total = total + inside[-1:]
    return torch.cat(sums)


def pairwise(x: Tensor) -> Tensor:
    """Each sum by itself, as the sum of its halves."""

    def total(rows: Tensor) -> Tensor:
        half = len(rows) // 2
        return rows if len(rows) == 1 else total(rows[:half]) + total(rows[half:])

    return torch.cat([x[:0], *(total(x[: t + 1]) for t in range(len(x)))])


def kahan(x: Tensor) -> Tensor:
    """With what the rounding of each addition lost."""
    total, lost, sums = torch.zeros_like(x[:1]), torch.zeros_like(x[:1]), [x[:0]]
    for row in x.split(1):
        term = row - lost
        new_total = total + term
        total, lost = new_total, (new_total - total) - term
        sums.append(total)
    return torch.cat(sums)


ORDERS: Mapping[str, Order] = {
    "sequential": sequential,
    "reversed": reversed_terms,
    "tree": tree,
    "blocks": blocks,
    "pairwise": pairwise,
    "kahan": kahan,
}


def decays_of_sums(order: Order, g: Tensor) -> Tensor:
    """exp(c_i - c_j) of the gates (n, ...) of a chunk, without a gradient: (n + 1, n + 1, ...). Row 0 is the state."""
    sums = torch.cat([g.new_zeros(1, *g.shape[1:]), order(g.detach())])
    above = torch.ones(len(sums), len(sums), dtype=torch.bool).triu(1).view(len(sums), len(sums), *[1] * (g.ndim - 1))
    return (sums[:, None] - sums[None]).masked_fill(above, -torch.inf).exp()


class FactorsOfSums(torch.autograd.Function):
    """Ones for what a token reads by its sum of gates (n, ...), writes by it (n, ...), and for the chunk's end (...).

    Their gradients are those of the sums. The gradient of a gate sums them back: half of the orders do so from the last
    token on, and half as the sum of all tokens minus the sum before, as flash-linear-attention does.
    """

    @staticmethod
    def forward(ctx: Any, order: Order, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.order = order
        return torch.ones_like(g), torch.ones_like(g), g.new_ones(g.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        read, written, end = grads
        of_sums = read - written
        of_sums[-1:] += end
        if ctx.order in (sequential, blocks, kahan):
            return None, ctx.order(of_sums.flip(0)).flip(0)
        return None, of_sums.sum(0, keepdim=True) - ctx.order(of_sums) + of_sums
