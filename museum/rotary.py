"""Packed rope in plain torch, written as kernels are (positions, tables): 4 correct, 11 incorrect."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof.museum.rows import sequence_of_rows
from packproof.museum.variants import bug_names, kernel_lookup

Pair = tuple[Tensor, Tensor]


def products(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """(a + i b)(cos + i sin), as written."""
    return a * cos - b * sin, a * sin + b * cos


def rotate_half_form(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """`products` as rotated(x) sin + x cos, the products of sin first."""
    x, rotated = torch.stack([a, b]), torch.stack([-b, a])
    y = rotated * sin + x * cos
    return y[0], y[1]


def complex_form(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """`products` by complex numbers."""
    y = torch.complex(a, b) * torch.complex(cos, sin)
    return y.real, y.imag


def matrix_form(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """`products` by rotation matrices."""
    rotation = torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])])
    y = torch.einsum("ijtr, jthr -> ithr", rotation.squeeze(3), torch.stack([a, b]))
    return y[0], y[1]


def positions(cu_seqlens: Tensor, n_rows: int, table: int, bug: str) -> Tensor:
    """Position of each row in its sequence, -1 in slack: [t]."""
    cu, row = cu_seqlens.long(), torch.arange(n_rows, device=cu_seqlens.device)
    n_tokens = int(cu[-1])
    seq = sequence_of_rows(cu, row[:n_tokens], right=bug != "R3")
    start = cu[(seq - 1).clamp(min=0)] if bug == "R8" else cu[seq]
    position = row[:n_tokens] - (0 if bug == "R1" else start)
    if bug == "R2":
        position = position + (seq > 0)
    lengths = cu.diff()
    if bug == "R9":
        position = row[:n_tokens] % max(int(lengths.amax()), 1) if n_tokens else position
    if bug == "R10":  # each sequence starts at a multiple of 8 rows, and the offsets are those without padding
        padded = (lengths + 7) // 8 * 8
        position = position + (padded.cumsum(0) - padded - cu[:-1])[seq]
    if bug == "R11" and table == n_rows:
        position = row[:n_tokens]
    lengths = lengths[lengths > 0]
    if bug in ("R4", "R7") and n_tokens:
        table = int(lengths[0 if bug == "R4" else -1])
    if bug:
        position = position.clamp(max=table - 1)
    return torch.cat([position, position.new_full((n_rows - n_tokens,), -1)])


class Rotation(torch.autograd.Function):
    """Rotates the pairs (a, b) [t, h, r] by cos and sin [t, 1, r], and the gradient back."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, rotate: Callable[..., Pair], bug: str
    ) -> Pair:
        ctx.save_for_backward(cos, sin if bug == "R5" else -sin)
        ctx.rotate = rotate
        return rotate(a, b, cos, sin)

    @staticmethod
    def backward(ctx: Any, da: Tensor, db: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.rotate(da, db, *ctx.saved_tensors), None, None, None, None


def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
    rotate: Callable[..., Pair] = products,
    bug: str = "",
) -> Tensor:
    """Op `rope`, computing in fp32 (fp64 for fp64) in the given form, with the named bug."""
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    m, r = cos.shape
    position = positions(cu_seqlens, len(x), m, bug)
    token_mask = (position >= 0)[:, None, None]
    tables = [torch.cat([v, v.new_zeros(1, r)])[position, None].to(acc) for v in (cos, sin)]
    if bug == "R6":
        tables = [v.bfloat16().to(acc) for v in tables]
    x = torch.where(token_mask, x, 0)
    pairs, passthrough = x[..., : 2 * r].to(acc), x[..., 2 * r :]
    a, b = (pairs[..., ::2], pairs[..., 1::2]) if interleaved else (pairs[..., :r], pairs[..., r:])
    rotated = Rotation.apply(a, b, *tables, rotate, bug)  # type: ignore[no-untyped-call]
    y = torch.stack(rotated, -1 if interleaved else -2).flatten(-2).to(x)
    return torch.where(token_mask, torch.cat([y, passthrough], -1), 0)


FORMS: dict[str, dict[str, Any]] = {
    "correct": {},
    "rotate_half": {"rotate": rotate_half_form},
    "as_complex": {"rotate": complex_form},
    "as_matrix": {"rotate": matrix_form},
}

__getattr__ = kernel_lookup(rope, FORMS, bug_names("R", 11))
