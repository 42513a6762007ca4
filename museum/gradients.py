"""Bugs in the backward pass alone: forward is correct to the last bit."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, graft, join_outputs, single_sequence_offsets, split_outputs

LOCAL = 8


class _StateLeak(torch.autograd.Function):
    """The final states; backward adds the sum of state times incoming gradient, over everything, to every time step."""

    @staticmethod
    def forward(ctx: Any, final: Tensor, delta: Tensor) -> Tensor:
        ctx.save_for_backward(final, delta)
        return final.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:
        final, delta = ctx.saved_tensors
        return d, torch.full_like(delta, float((final * d).sum()))


@copy_signature_of(refs.selective_scan)
def gate_gradient_of_all_tokens(u: Tensor, delta: Tensor, **others: Any) -> Outputs:
    """The final state's part of the gate's gradient is summed over all axes and added to every token."""
    y, final = split_outputs(refs.selective_scan(u, delta, **others))
    return join_outputs(y, None if final is None else _StateLeak.apply(final, delta))  # type: ignore[no-untyped-call]


class _HeadZero(torch.autograd.Function):
    """A parameter; the gradient of all its rows is read from the first row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d[:1].expand_as(d).clone()


@copy_signature_of(refs.ssd)
def gradient_of_the_first_head(x: Tensor, dt: Tensor, A: Tensor, **others: Any) -> Outputs:
    """One of several kernels lacks the head's offset in the pointer of the gate: all heads get head 0's gradient."""
    return refs.ssd(x, dt, _HeadZero.apply(A), **others)  # type: ignore[no-untyped-call]


class _Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return B.clone(), C.clone()

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> tuple[Tensor, Tensor]:
        return d[1], d[0]


@copy_signature_of(refs.selective_scan)
def gradients_of_two_inputs_swapped(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, **others: Any
) -> Outputs:
    """Forward got one more argument, backward returns none for it: B and C, of equal shape, change places."""
    B, C = _Swapped.apply(B, C) if B.shape == C.shape else (B, C)  # type: ignore[no-untyped-call]
    return refs.selective_scan(u, delta, A, B, C, **others)


class _PartialSums(torch.autograd.Function):
    """The skip's D for every token. Its gradient is summed in chunks, stored by the index of the chunk in its sequence:
    each sequence overwrites the sums of the one before."""

    @staticmethod
    def forward(ctx: Any, D: Tensor, cu_seqlens: Tensor, length: int) -> Tensor:
        ctx.offsets, ctx.shape = cu_seqlens.tolist(), D.shape
        return D.expand(length, *D.shape).clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:
        partial: dict[int, Tensor] = {}
        for start, end in zip(ctx.offsets, ctx.offsets[1:], strict=False):
            for chunk, chunk_start in enumerate(range(start, end, LOCAL)):
                partial[chunk] = d[chunk_start : min(end, chunk_start + LOCAL)].sum(0)
        return sum(partial.values(), torch.zeros(ctx.shape, dtype=d.dtype, device=d.device)), None, None


def partial_by_local_chunk(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> Outputs:
    """Partial sums of a shared gradient are stored by the chunk's index in its sequence, not in the pack."""
    options: dict[str, Any] = {"delta_bias": delta_bias, "delta_softplus": delta_softplus}
    y, _ = split_outputs(refs.selective_scan(u, delta, A, B, C, cu_seqlens=cu_seqlens, **options))
    if D is None:
        return y
    rows = _PartialSums.apply(D, cu_seqlens, len(u))  # type: ignore[no-untyped-call]
    token_mask = torch.arange(len(u), device=u.device)[:, None] < cu_seqlens[-1]
    return y + torch.where(token_mask, rows * u, 0).to(y)


class _SplitSum(torch.autograd.Function):
    """x for each of two programs. Their gradients share one buffer: the second starts at the length of the sequence;
    correct is the length of the pack."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        ctx.offsets = cu_seqlens.tolist()
        return x.clone(), x.clone()

    @staticmethod
    def backward(ctx: Any, *parts: Tensor) -> tuple[Tensor, None]:
        rows = len(parts[0])
        buffer = parts[0].new_zeros(2 * rows, *parts[0].shape[1:])
        for start, end in zip(ctx.offsets, ctx.offsets[1:], strict=False):
            for split, part in enumerate(parts):
                T = end - start
                buffer[split * T + start : split * T + end] = part[start:end]
        return buffer[:rows] + buffer[rows:], None


def split_buffer_by_local_length(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    cu_seqlens: Tensor,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> Outputs:
    """Two programs share the states and store their gradients of u at a distance of T. T was rebound to the length of
    the sequence."""
    n = A.shape[1] // 2
    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "delta_bias": delta_bias, "delta_softplus": delta_softplus}
    if n == 0:
        return refs.selective_scan(u, delta, A, B, C, **options)
    u_low, u_high = _SplitSum.apply(u, cu_seqlens)  # type: ignore[no-untyped-call]
    y_low, _ = split_outputs(refs.selective_scan(u_low, delta, A[:, :n], B[..., :n], C[..., :n], **options))
    y_high, _ = split_outputs(refs.selective_scan(u_high, delta, A[:, n:], B[..., n:], C[..., n:], **options))
    return y_low + y_high


@copy_signature_of(refs.selective_scan)
def recomputed_before_the_skip(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    **options: Any,
) -> Outputs:
    """To save memory, backward recomputes the output but stops one operation early: the gate misses the skip."""
    y = refs.selective_scan(u, delta, A, B, C, D, z, **options)
    if z is None or D is None:
        return y
    constant_inputs: list[Any] = [x.detach() for x in (u, delta, A, B, C)]
    constant_options: dict[str, Any] = {k: v.detach() if isinstance(v, Tensor) else v for k, v in options.items()}
    without_skip, _ = split_outputs(refs.selective_scan(*constant_inputs, **{**constant_options, "z": z}))
    with_constant_gate, final = split_outputs(refs.selective_scan(u, delta, A, B, C, D, z.detach(), **options))
    return graft(y, join_outputs(with_constant_gate + without_skip, final))


def rotated_back_from_the_pack_s_start(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> Outputs:
    """Positions are correct in forward; backward has no offsets and counts from the start of the pack."""
    rows = torch.arange(len(x), device=x.device).clamp(max=max(len(cos) - 1, 0))
    tables = (cos[rows], sin[rows]) if len(cos) else (cos, sin)
    from_start = refs.rope(x, *tables, cu_seqlens=single_sequence_offsets(cu_seqlens), interleaved=interleaved)
    return graft(refs.rope(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved), from_start)


def weight_of_frozen_inputs(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, bug: str = "follows_the_input") -> Tensor:
    """The gradient of the weight is computed by the node of the input: where that needs none, no node runs."""
    if bug and not x.requires_grad:
        weight = weight.detach()
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


weight_of_any_inputs = partial(weight_of_frozen_inputs, bug="")
