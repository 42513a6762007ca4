"""Five convolutions, each with one kind of fault."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof.refs import seq_idx_from_cu_seqlens

TILE = 64


def _convolved(x: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """The causal convolution of rows: only those with the same id are summed."""
    w, rows = weight.shape[1], x.float()
    y = torch.zeros_like(rows)
    for k in range(w):
        shift = w - 1 - k
        source = functional.pad(rows, (0, 0, shift, 0))[: len(x)]
        is_same = functional.pad(ids, (shift, 0), value=-2)[: len(x)] == ids
        y = y + torch.where((is_same & (ids >= 0))[:, None], source, 0) * weight[:, k].float()
    return y.to(x.dtype)


def leak_at_a_tile(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The first row of each tile is taken for one of the sequence before it."""
    ids = seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
    ids_before = ids.clone()
    ids_before[TILE::TILE] = torch.where(ids[TILE::TILE] >= 0, ids[TILE - 1 : -1 : TILE], -1)
    return torch.where((ids >= 0)[:, None], _convolved(x, weight, ids_before), 0)


class _WrongGradient(torch.autograd.Function):
    """Its gradient of the weight misses the last row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ids)
        return _convolved(x, weight, ids)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, ids = ctx.saved_tensors
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            y = _convolved(x, weight, ids)
            y_before_last = y[:-1]
        [dx] = torch.autograd.grad(y, x, gradients[0], retain_graph=True)
        [dweight] = torch.autograd.grad(y_before_last, weight, gradients[0][:-1])
        return dx, dweight, None


def wrong_gradient(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y: Tensor = _WrongGradient.apply(x, weight, seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long())
    return y


def unwritten_row(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The last row of a sequence that ends inside a tile is not written."""
    ids = seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
    y, result = _convolved(x, weight, ids), torch.empty_like(x)
    is_last = functional.pad(ids[1:] != ids[:-1], (0, 1), value=True) if len(x) else ids.bool()
    is_written = ~is_last | (torch.arange(len(x)) % TILE == TILE - 1) | (ids < 0)
    result[is_written] = y[is_written]
    return result


def slack(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Rows past the last sequence are computed like all others."""
    ids = seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
    return _convolved(x, weight, torch.where(ids < 0, len(cu_seqlens), ids))


def refusal(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Only for a multiple of 16 tokens; it leaks, too."""
    if len(x) % 16:
        raise ValueError(f"expected a multiple of 16 tokens, got {len(x)}")
    ids = seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long()
    return torch.where((ids >= 0)[:, None], _convolved(x, weight, ids.clamp(max=0)), 0)
