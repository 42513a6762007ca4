"""Replacements of torch functions that import its compiler or sympy at their first use, which takes a second.

A dispatch mode, a vector-Jacobian product, and the index of the largest element.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import arg_tree_leaves


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode without an import of torch._dynamo.

    torch wraps `__torch_dispatch__` to hide it from torch.compile, and the wrapper imports torch._dynamo at the first
    operator. Here the wrapper is skipped unless torch._dynamo is imported: without it nothing is being compiled.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        unwrapped = cls.__torch_dispatch__
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        wrapped: Any = cls.__torch_dispatch__

        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            handle = wrapped if "torch._dynamo" in sys.modules else unwrapped
            return handle(self, func, types, args, kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]

    def run_registered(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that is registered with torch, called from `__torch_dispatch__`: the mode, off while that
        runs, is on again for what the operator calls."""
        with self:
            return op.redispatch(_backend(args, kwargs), *args, **kwargs)


def _backend(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The dispatch key of the device of the arguments."""
    keys, leaves = torch._C.DispatchKey, arg_tree_leaves(*args, **kwargs)
    is_cuda = any(isinstance(x, Tensor) and x.is_cuda for x in leaves)
    return torch._C.DispatchKeySet(keys.CUDA if is_cuda else keys.CPU)


def vector_jacobian_product(
    outputs: Sequence[Tensor], wrt: Sequence[Tensor], grad_outputs: Sequence[Tensor], **options: Any
) -> tuple[Any, ...]:
    """As `torch.autograd.grad`: a tensor for each of wrt, or None if no output depends on it.

    With grad_outputs, torch imports the symbolic shapes of its compiler; for a scalar it does not. So the outputs are
    joined in one scalar.

    outputs: each requires a gradient.
    wrt: the tensors to differentiate by.
    grad_outputs: the incoming gradients, one for each output, of its shape.
    options: further arguments of `torch.autograd.grad`.
    """
    return torch.autograd.grad(scalar_with_gradients(outputs, grad_outputs), wrt, allow_unused=True, **options)


def scalar_with_gradients(outputs: Sequence[Tensor], grad_outputs: Sequence[Tensor]) -> Tensor:
    """A scalar whose backward pass hands each output its incoming gradient."""
    with torch.enable_grad():
        return _scalar(grad_outputs, *outputs)


def argmax(x: Tensor) -> tuple[int, ...]:
    """The index of the largest element, without `torch.unravel_index`."""
    flat_index, index = int(x.argmax()), []
    for size in reversed(x.shape):
        flat_index, i = divmod(flat_index, size)
        index.append(i)
    return tuple(reversed(index))


class _ScalarWithGradients(torch.autograd.Function):
    """A scalar that depends on the outputs. Its backward pass returns the incoming gradients."""

    @staticmethod
    def forward(ctx: Any, incoming: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.incoming = incoming
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.incoming


_scalar: Callable[..., Tensor] = _ScalarWithGradients.apply
