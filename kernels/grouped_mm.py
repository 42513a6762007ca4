"""Grouped matrix multiplication over a pack, forward and backward, in Triton: the products of the experts of a mixture.

The gradient of x is the same product with each matrix transposed; that of a matrix is a product of its own.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import bind, empty_output
from packproof.base.errors import checked_call
from packproof.base.signatures import GROUPED_MM
from packproof.kernels.grouped_mm_tiles import (
    ROWS,
    ROWS_INTERPRETED,
    _grouped_rows_kernel,
    launch_rows,
    launch_sums,
    launch_weights,
    variants,
)
from packproof.kernels.launch import contiguous_rows, is_on_host, require_device, require_dtype
from packproof.kernels.operators import differentiable, differentiable_once, fake, operator
from packproof.kernels.sequences import offsets

__all__ = ["INTERPRETED", "PROMISES", "grouped_mm", "variants"]

PROMISES: dict[str, Any] = {
    "grid": "sequence",
    "chunk": ROWS,
    "compute": "fp32",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
}
INTERPRETED: dict[str, Any] = {"chunk": ROWS_INTERPRETED}

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@checked_call
def grouped_mm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """y = x W_j + b_j for the rows of each group j, as the experts of a mixture do (MegaBlocks, Gale et al. 2022).

    x: (t, d), in fp32, bf16 or fp16, computed in fp32: products of 16-bit operands are exact, and nothing is rounded to
    tf32.
    weight: (s, d, f), in x's dtype, a matrix for each group; contiguous along d or f, otherwise it is copied.
    bias: (s, f), in x's dtype.
    cu_seqlens: int32 or int64 (s + 1,). Group j has rows cu_seqlens[j] to cu_seqlens[j + 1].

    Returns y (t, f) in x's dtype, zero in slack. A group without rows has gradients of 0. The bits of a group's rows
    and gradients do not depend on the other groups. Differentiable once. Nothing waits for a GPU, so the values of
    cu_seqlens are not checked there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import grouped_mm
    >>> x, weight = torch.ones(3, 2), torch.tensor([[[1.0], [2.0]], [[10], [20]]])  # on a CPU with TRITON_INTERPRET=1
    >>> grouped_mm(x, weight, cu_seqlens=torch.tensor([0, 1, 3]))[:, 0]
    tensor([ 3., 30., 30.])
    """
    if not torch.compiler.is_compiling():
        _bind(x, weight, bias, cu_seqlens, values=is_on_host(x))
        require_device(GROUPED_MM.op, x, _grouped_rows_kernel)
    result: Tensor = _grouped_mm(x, weight, bias, cu_seqlens)
    return result


def _bind(x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, *, values: bool) -> dict[str, int]:
    sizes = bind(GROUPED_MM, cu_seqlens, x=x, weight=weight, bias=bias, values=values)
    require_dtype(GROUPED_MM.op, "x", x, _DTYPES)
    return sizes


@operator
def _grouped_mm(x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    y = x.new_empty(len(x), weight.shape[2])
    launch_rows(contiguous_rows(x), weight, bias, offsets(GROUPED_MM.op, cu_seqlens, len(x)), y)
    return y


@operator
def _grouped_mm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, cu_seqlens: Tensor, needs_dx: bool, needs_dweight: bool, needs_dbias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias, each empty unless needed."""
    dy, starts = contiguous_rows(dy), offsets(GROUPED_MM.op, cu_seqlens, len(x))
    dx, dweight, dbias = _new_gradients(x, weight, needs_dx, needs_dweight, needs_dbias)
    if needs_dx:
        launch_rows(dy, weight.transpose(1, 2), None, starts, dx)
    if needs_dweight:
        launch_weights(contiguous_rows(x), dy, starts, dweight)
    if needs_dbias:
        launch_sums(dy, starts, dbias)
    return dx, dweight, dbias


def _new_gradients(
    x: Tensor, weight: Tensor, needs_dx: bool, needs_dweight: bool, needs_dbias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    bias_shape = weight.shape[0], weight.shape[2]
    return (
        x.new_empty(x.shape if needs_dx else 0),
        weight.new_empty(weight.shape if needs_dweight else 0),
        weight.new_empty(bias_shape if needs_dbias else 0),
    )


@fake(_grouped_mm)
def _(x, weight, bias, cu_seqlens):
    return empty_output(GROUPED_MM, "y", x, _bind(x, weight, bias, cu_seqlens, values=False))


@fake(_grouped_mm_backward)
def _(dy, x, weight, cu_seqlens, needs_dx, needs_dweight, needs_dbias):
    return _new_gradients(x, weight, needs_dx, needs_dweight, needs_dbias)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, cu_seqlens = inputs
    ctx.save_for_backward(x, weight, cu_seqlens)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:3]
    gradients = _grouped_mm_backward(dy, *ctx.saved_tensors, *needed)
    return (*(gradient if is_needed else None for gradient, is_needed in zip(gradients, needed, strict=True)), None)


differentiable(_grouped_mm, _backward, _save)
differentiable_once(_grouped_mm_backward, GROUPED_MM.op)
