"""Kernels of y[t] = weight * (x[0] + ... + x[t]) for each sequence, each with the faults of its name.

They compute as a kernel with tiles of 64 rows of the pack would. `correct` has no fault.
"""

import torch
from torch import Tensor

import packproof
from packproof.refs import join_sequences, seq_idx_from_cu_seqlens, split_sequences

TILE = 64


def _reference(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return join_sequences([rows.cumsum(0) * weight for rows in split_sequences(x, cu_seqlens)], x)


RUNNING_SUM = packproof.Op(
    name="running_sum",
    reference=_reference,
    inputs={"x": "t d", "weight": "d"},
    outputs={"y": "t d"},
    sizes=({"d": 3}, {"d": 8}),
)


def _scaled_sums(x: Tensor, weight: Tensor, cu_seqlens: Tensor, *faults: str) -> Tensor:
    """The sums in fp32. faults: "tile" keeps the sum where a sequence begins with a tile, "slack" reads slack rows."""
    rows, sequences = torch.arange(len(x)), seq_idx_from_cu_seqlens(cu_seqlens, len(x))
    inside = torch.ones_like(sequences, dtype=torch.bool) if "slack" in faults else sequences >= 0
    begins = sequences.diff(prepend=torch.full((1,), -2)) != 0
    if "tile" in faults:
        begins &= (rows % TILE != 0) | (rows == 0)
    groups = begins.cumsum(0)
    x = torch.where(inside[:, None], x, 0).float()
    reads = (groups[:, None] == groups) & (rows[:, None] >= rows) & inside
    return torch.where(inside[:, None], reads.float() @ x * weight.float(), 0)


def correct(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _scaled_sums(x, weight, cu_seqlens).to(x.dtype)


def tile_leak(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _scaled_sums(x, weight, cu_seqlens, "tile").to(x.dtype)


def slack_rows(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _scaled_sums(x, weight, cu_seqlens, "slack").to(x.dtype)


def slack_rows_and_tile_leak(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _scaled_sums(x, weight, cu_seqlens, "tile", "slack").to(x.dtype)


def refuses_lengths(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    if any(n % 16 for n in cu_seqlens.diff().tolist()):
        raise ValueError(f"lengths are {cu_seqlens.diff().tolist()}, expected multiples of 16")
    return correct(x, weight, cu_seqlens=cu_seqlens)


class _Sums(torch.autograd.Function):
    """The sums with an output and a backward pass written by hand."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, cu_seqlens: Tensor, faults: tuple[str, ...]) -> Tensor:
        ctx.save_for_backward(x, weight, cu_seqlens)
        ctx.faults = faults
        y = torch.empty_like(x)
        n = len(x) - 1 if "unwritten" in faults and len(x) % 8 == 3 else len(x)
        y[:n] = _scaled_sums(x, weight, cu_seqlens, *faults).to(x.dtype)[:n]
        return y

    @staticmethod
    def backward(ctx, dy: Tensor):
        x, weight, cu_seqlens = ctx.saved_tensors
        with torch.enable_grad():
            x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
            dx, dweight = torch.autograd.grad(
                _scaled_sums(x, weight, cu_seqlens, *ctx.faults).to(x.dtype), (x, weight), dy
            )
        return dx, dweight * (2 if "gradient" in ctx.faults else 1), None, None


def wrong_gradient(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _Sums.apply(x, weight, cu_seqlens, ("gradient",))


def unwritten_row(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _Sums.apply(x, weight, cu_seqlens, ("unwritten",))


def unwritten_row_twice_differentiable(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y, n = torch.empty_like(x), len(x) - 1 if len(x) % 8 == 3 else len(x)
    y[:n] = correct(x, weight, cu_seqlens=cu_seqlens)[:n]
    return y


def tile_leak_and_wrong_gradient(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _Sums.apply(x, weight, cu_seqlens, ("tile", "gradient"))


def tile_leak_and_unwritten_row(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return _Sums.apply(x, weight, cu_seqlens, ("tile", "unwritten"))


def constant_for_one_token(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y = correct(x, weight, cu_seqlens=cu_seqlens)
    return y.detach() if len(x) == 1 else y


def detached(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return correct(x, weight, cu_seqlens=cu_seqlens).detach()
