"""Causal depthwise convolution over a pack, forward and backward: in Triton, and for NVIDIA GPUs in CUDA C++ too.

An element depends on its own window alone, and its taps are added oldest first. So its bits cannot depend on the pack.
The mathematics is in causal_conv1d_fwd and causal_conv1d_bwd, and in causal_conv1d.cu, where threads walk along windows
of the pack. causal_conv1d_launch has the order of the kernels.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from packproof.base.arguments import bind, check_option, check_options, empty_output
from packproof.base.errors import checked_call
from packproof.base.signatures import CAUSAL_CONV1D
from packproof.kernels import cuda
from packproof.kernels.causal_conv1d_fwd import _causal_conv1d_fwd_kernel
from packproof.kernels.causal_conv1d_launch import problem, refusal, variants
from packproof.kernels.launch import is_on_host, require_device
from packproof.kernels.operators import differentiable, differentiable_once, fake, operator

Activation = Literal["silu"] | None

PROMISES: dict[str, Any] = {
    "grid": "token",
    "chunk": 32,
    "compute": "fp32",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
}
INTERPRETED: dict[str, Any] = {}

__all__ = ["INTERPRETED", "PROMISES", "causal_conv1d", "causal_conv1d_triton", "variants"]


@overload
def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, initial_states: Tensor | None = None,
    activation: Activation = None, return_final_states: Literal[False] = False, impl: str = "auto",
) -> Tensor: ...  # fmt: skip
@overload
def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, initial_states: Tensor | None = None,
    activation: Activation = None, return_final_states: Literal[True], impl: str = "auto",
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, initial_states: Tensor | None = None,
    activation: Activation = None, return_final_states: bool, impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@checked_call
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    activation: Activation = None,
    return_final_states: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each sequence of a pack with its own past only.

    x: (t, d), in fp64, fp32, bf16 or fp16. The last two compute in fp32, and beside them any other tensor may be fp32.
    weight: (d, w). The last tap meets the token itself.
    bias: (d,).
    cu_seqlens: int32 or int64 (s + 1,).
    initial_states: (s, d, w-1), the inputs before each sequence, oldest first; zeros if left out.
    activation: None or "silu".
    return_final_states: return the last inputs of each sequence too.
    impl: "triton", or "cuda", faster, for NVIDIA GPUs and 2 to 4 taps in fp32, bf16 or fp16, with states in x's dtype
    and packproof[cuda]; "auto" chooses "cuda" where it can run.

    Returns y (t, d), zero in slack. With return_final_states it also returns the last w-1 inputs of each sequence (s,
    d, w-1); those of a shorter sequence begin with part of the initial state. Both are in x's dtype. A gradient has the
    dtype of its input, and is rounded to it once. Differentiable once. The bits of a sequence's values and gradients do
    not depend on the others. Nothing waits for a GPU, so the values of cu_seqlens are not checked there. Raises
    ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import causal_conv1d
    >>> x, weight = torch.arange(1.0, 6)[:, None], torch.ones(1, 2)  # on a CPU with TRITON_INTERPRET=1
    >>> causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0]
    tensor([1., 3., 3., 7., 9.])
    """
    check_options(CAUSAL_CONV1D, activation=activation, return_final_states=return_final_states)
    check_option(CAUSAL_CONV1D.op, "impl", impl, cuda.IMPLEMENTATIONS)
    if not torch.compiler.is_compiling():
        _bind(x, weight, bias, cu_seqlens, initial_states, values=is_on_host(x))
        require_device(CAUSAL_CONV1D.op, x, _causal_conv1d_fwd_kernel)
        _uses_cuda(impl, x, weight, initial_states)  # an impl that cannot run is an error before anything is launched
    y, final_states = _causal_conv1d(
        x, weight, bias, cu_seqlens, initial_states, activation == "silu", return_final_states, impl
    )
    return (y, final_states) if return_final_states else y


causal_conv1d_triton = partial(causal_conv1d, impl="triton")


def _uses_cuda(impl: str, x: Tensor, weight: Tensor, initial_states: Tensor | None) -> bool:
    """Whether to run the kernels in CUDA C++. Raises ArgumentError if `impl` asks for them and they cannot run."""
    return cuda.uses_cuda(CAUSAL_CONV1D.op, impl, refusal(x, weight, initial_states))


def _bind(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, values: bool
) -> dict[str, int]:
    tensors = {"x": x, "weight": weight, "bias": bias, "initial_states": initial_states}
    return bind(CAUSAL_CONV1D, cu_seqlens, **tensors, values=values)


@operator
def _causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None,
    silu: bool, return_final_states: bool, impl: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y and the final states, empty unless requested."""
    call = problem(_uses_cuda(impl, x, weight, initial_states), x, weight, bias, cu_seqlens, initial_states, silu)
    return call.outputs(), call.final_states() if return_final_states else x.new_empty(0)


@operator
def _causal_conv1d_backward(
    dy: Tensor, dfinal: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor,
    initial_states: Tensor | None, silu: bool, needs_dx: bool, impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x (empty unless needed), weight, bias and initial_states (empty without them)."""
    call = problem(_uses_cuda(impl, x, weight, initial_states), x, weight, bias, cu_seqlens, initial_states, silu)
    return call.gradients(dy, dfinal, needs_dx)


@fake(_causal_conv1d)
def _(x, weight, bias, cu_seqlens, initial_states, silu, return_final_states, impl):
    sizes = _bind(x, weight, bias, cu_seqlens, initial_states, values=False)
    final_states = empty_output(CAUSAL_CONV1D, "final_states", x, sizes) if return_final_states else x.new_empty(0)
    return empty_output(CAUSAL_CONV1D, "y", x, sizes), final_states


@fake(_causal_conv1d_backward)
def _(dy, dfinal, x, weight, bias, cu_seqlens, initial_states, silu, needs_dx, impl):
    dx, dbias = x.new_empty(x.shape if needs_dx else 0), (weight if bias is None else bias).new_empty(x.shape[1])
    dstates = x.new_empty(0) if initial_states is None else initial_states.new_empty(initial_states.shape)
    return dx, weight.new_empty(weight.shape), dbias, dstates


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.silu, ctx.has_final_states, ctx.impl = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, cu_seqlens, initial_states = ctx.saved_tensors
    needs_dx, needs_dweight, needs_dbias, _, needs_dstates, *_ = ctx.needs_input_grad
    dx, dweight, dbias, dstates = _causal_conv1d_backward(
        dy, dfinal if ctx.has_final_states else None, x, weight, bias, cu_seqlens, initial_states, ctx.silu, needs_dx,
        ctx.impl,
    )  # fmt: skip
    return (
        dx if needs_dx else None,
        dweight if needs_dweight else None,
        dbias if needs_dbias else None,
        None,
        dstates if needs_dstates else None,
        None,
        None,
        None,
    )


differentiable(_causal_conv1d, _backward, _save)
differentiable_once(_causal_conv1d_backward, CAUSAL_CONV1D.op)
