"""What torch has too, without the second that it takes to import its compiler or sympy for it: a mode that sees every
operator, gradients from incoming ones, and the index of the largest element."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """What torch wraps around `__torch_dispatch__`, so that torch.compile leaves it alone, imports torch._dynamo at the
    first operator. Here it is left out where nothing has imported that: then nothing is being compiled."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = cls.__torch_dispatch__
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        wrapped: Any = cls.__torch_dispatch__

        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            handle = wrapped if "torch._dynamo" in sys.modules else plain
            return handle(self, func, types, args, kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]


def pulled_back(
    outputs: Sequence[Tensor], wrt: Sequence[Tensor], incoming: Sequence[Tensor], **options: Any
) -> tuple[Any, ...]:
    """What `torch.autograd.grad` returns: a tensor for each of wrt, or None where no output reaches it.

    outputs: each requires a gradient. incoming: one for each, of its shape. options: of `torch.autograd.grad`, which
    imports the symbolic shapes of torch's compiler where it is given incoming gradients, but not for a scalar.
    """
    with torch.enable_grad():
        head = _head(incoming, *outputs)
    return torch.autograd.grad(head, wrt, allow_unused=True, **options)


def argmax(x: Tensor) -> tuple[int, ...]:
    """The index of the largest element, without `torch.unravel_index`."""
    at, index = int(x.argmax()), []
    for size in reversed(x.shape):
        at, i = divmod(at, size)
        index.append(i)
    return tuple(reversed(index))


class _Head(torch.autograd.Function):
    """A scalar whose gradient reaches the outputs as the incoming ones."""

    @staticmethod
    def forward(ctx: Any, incoming: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.incoming = incoming
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.incoming


_head: Callable[..., Tensor] = _Head.apply
