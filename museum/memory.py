"""Bugs of memory: rows never written, tensors taken for contiguous, wrapping offsets, tiles too large."""

from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, graft, join_outputs, split_outputs

TILE = 16
WRAP = 2**12  # elements; real kernels wrap at 2^31 and 2^32
FEW_BITS = 64  # positions; the real kernel has 2^15


class _WrittenRows(torch.autograd.Function):
    """The rows [0, n) of y in a new buffer, and of its gradient in another. Rows from n on are never written."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, n: int) -> Tensor:
        ctx.n = n
        return _WrittenRows.copy_rows(y, n)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return _WrittenRows.copy_rows(d, ctx.n), None

    @staticmethod
    def copy_rows(x: Tensor, n: int) -> Tensor:
        out = torch.empty_like(x)
        out[:n] = x[:n]
        return out


@copy_signature_of(refs.attention)
def attention_leaves_slack(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, **options: Any) -> Outputs:
    """Output and gradients are allocated for all rows and written up to the last offset."""
    n = int(cu_seqlens[-1])
    q, k, v = (_WrittenRows.apply(x, n) for x in (q, k, v))  # type: ignore[no-untyped-call]
    y, lse = split_outputs(refs.attention(q, k, v, cu_seqlens=cu_seqlens, **options))
    return join_outputs(_WrittenRows.apply(y, n), lse)  # type: ignore[no-untyped-call]


def rope_leaves_slack(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Blocks cover the rows up to the last offset, output and gradient have more."""
    y = refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)
    output: Tensor = _WrittenRows.apply(y, int(cu_seqlens[-1]))  # type: ignore[no-untyped-call]
    return output


def rope_in_slices(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """The grid axis has a limit, so the launch is split into slices, of 64 rows here. The second slice compares the row
    in the pack with the length of the slice."""
    y = refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)
    output: Tensor = _WrittenRows.apply(y, max(FEW_BITS, len(x) - FEW_BITS))  # type: ignore[no-untyped-call]
    return output


@copy_signature_of(refs.selective_scan)
def scan_without_the_ungated_branch(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    **options: Any,
) -> Outputs:
    """Only the branch with a gate stores the output."""
    y, final = split_outputs(refs.selective_scan(u, delta, A, B, C, D, z, **options))
    return join_outputs(y if z is not None else _WrittenRows.apply(y, 0), final)  # type: ignore[no-untyped-call]


@copy_signature_of(refs.causal_conv1d)
def conv_that_is_not_launched(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any
) -> Outputs:
    """The launch was left out in a port: the empty buffer is returned."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **options))
    return join_outputs(_WrittenRows.apply(y, 0), final)  # type: ignore[no-untyped-call]


class _FromStorage(torch.autograd.Function):
    """x; backward reads the incoming gradient with the strides of a contiguous tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return as_contiguous(d)


def as_contiguous(d: Tensor) -> Tensor:
    """Read d as if it were contiguous; past the end of its memory, its last element."""
    offset, size = int(d.storage_offset()), d.untyped_storage().nbytes() // d.element_size()
    memory = d.as_strided((size,), (1,), 0)
    return memory[(offset + torch.arange(d.numel(), device=d.device)).clamp(max=int(size) - 1)].view(d.shape)


@copy_signature_of(refs.causal_conv1d)
def conv_of_a_contiguous_gradient(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Outputs:
    """Backward addresses the incoming gradient of y with the strides (d, 1)."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, **options))
    return join_outputs(_FromStorage.apply(y) if y.numel() else y, final)  # type: ignore[no-untyped-call]


class _CopyOfTheView(torch.autograd.Function):
    """x; backward returns a view, but writes the gradient into a contiguous copy of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).zero_()
        dx.contiguous().copy_(d)
        return dx


@copy_signature_of(refs.causal_conv1d)
def conv_writes_a_copy(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Outputs:
    """The layout is made contiguous for the kernel: it fills a copy of the gradient, not the gradient."""
    return refs.causal_conv1d(_CopyOfTheView.apply(x), weight, bias, **options)  # type: ignore[no-untyped-call]


@copy_signature_of(refs.attention)
def attention_with_the_layout_of_k(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Outputs:
    """v is read with the strides of k. They are equal only for contiguous tensors with heads of equal width."""
    if v.numel() == 0:
        return refs.attention(q, k, v, **options)
    t, h, c = v.shape
    row = torch.arange(t, device=v.device)[:, None, None] * k.stride(0)
    index = row + torch.arange(h, device=v.device)[:, None] * k.stride(1) + torch.arange(c, device=v.device)
    flat = torch.as_strided(v, (v.untyped_storage().nbytes() // v.element_size(),), (1,), 0)
    return refs.attention(q, k, flat[(index + int(v.storage_offset())).clamp(max=len(flat) - 1)], **options)


@copy_signature_of(refs.causal_conv1d)
def conv_offset_wraps(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Outputs:
    """Offsets are unsigned and too narrow: past the wrap other tokens of the tensor are read, without a fault."""
    if x.numel() == 0:
        return refs.causal_conv1d(x, weight, bias, **options)
    wrapped_index = torch.arange(x.numel(), device=x.device) % WRAP
    return refs.causal_conv1d(x.reshape(-1)[wrapped_index].view(x.shape), weight, bias, **options)


@copy_signature_of(refs.selective_scan)
def scan_checkpoint_wraps(u: Tensor, cu_seqlens: Tensor, **others: Any) -> Outputs:
    """The product addressing the saved states wraps: backward starts the last rows from states of the first."""
    y = refs.selective_scan(u, cu_seqlens=cu_seqlens, **others)
    row = torch.arange(len(u), device=u.device)
    wrapped_row = torch.where(row * u.shape[1] < FEW_BITS, row, row - FEW_BITS // u.shape[1])
    return graft(y, refs.selective_scan(u[wrapped_row] if len(u) else u, cu_seqlens=cu_seqlens, **others))


def rope_with_few_bits(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Positions are kept in too few bits: 6 here."""
    wrapped_position = torch.arange(len(cos), device=x.device) % FEW_BITS
    return refs.rope(x, cos[wrapped_position], sin[wrapped_position], cu_seqlens=cu_seqlens, interleaved=interleaved)


def rope_of_a_fixed_width(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> Tensor:
    """The kernel reads 4 pairs per row, whatever the width of the table."""
    m, r = cos.shape
    index = torch.arange(m, device=x.device)[:, None] * 4 + torch.arange(r, device=x.device)
    tables = [t.reshape(-1)[index.clamp(max=t.numel() - 1)] if t.numel() else t for t in (cos, sin)]
    return refs.rope(x, *tables, cu_seqlens=cu_seqlens, interleaved=interleaved)


@copy_signature_of(refs.attention)
def attention_zeroes_a_tile(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, **options: Any) -> Tensor:
    """An empty sequence has its tile filled with zeros, bounded by the tensor and not by the sequence."""
    y, _ = split_outputs(refs.attention(q, k, v, cu_seqlens=cu_seqlens, **options))
    row = torch.arange(len(q), device=q.device)
    starts = cu_seqlens[:-1][cu_seqlens.diff() == 0]
    zero_mask = ((row >= starts[:, None]) & (row < starts[:, None] + TILE)).any(0)
    return torch.where(zero_mask[:, None, None], 0, y)
