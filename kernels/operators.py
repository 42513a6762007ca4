"""Operators of torch with cheap calls. A gradient registered by torch.library costs 45 us more in each call."""

# mypy: allow-untyped-calls

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError

_LIBRARY = torch.library.Library("packproof", "FRAGMENT")

Function = Callable[..., Any]


def operator(function: Function) -> Any:
    """packproof::<name of the function>. Its kernels are launched on the device of the first tensor.

    It mutates no argument and returns none.
    """
    name = function.__name__.strip("_")

    def on_device(tensor: Tensor, *arguments: Any) -> Any:
        with torch.cuda.device_of(tensor):
            return function(tensor, *arguments)

    schema = torch.library.infer_schema(function, mutates_args=())
    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, on_device, "CompositeExplicitAutograd")
    return getattr(torch.ops.packproof, name).default


def fake(op: Any) -> Any:
    """A decorator: the function gives torch.compile the shapes of the outputs of an operator."""
    return torch.library.register_fake(op.name(), lib=_LIBRARY)


def differentiable(op: Any, backward: Function, save: Callable[[Any, tuple[Any, ...], Any], None]) -> None:
    """Register the gradient of an operator.

    save: stores in a context the inputs and outputs for backward.
    """

    def call_below_autograd(*inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*inputs)

    def forward(ctx: Any, *inputs: Any) -> Any:
        output = call_below_autograd(*inputs)
        save(ctx, inputs, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    autograd_function: Any = type(op._opname, (torch.autograd.Function,), members)

    def call_with_autograd(*inputs: Any) -> Any:
        needs_gradient = torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)
        return autograd_function.apply(*inputs) if needs_gradient else call_below_autograd(*inputs)

    _LIBRARY.impl(op._opname, call_with_autograd, "Autograd")


def refuse_gradient(op: str, **requires_grad: bool) -> None:
    """Raise ArgumentError for any input by name that requires a gradient."""
    for name in (name for name, required in requires_grad.items() if required):
        raise ArgumentError(f"{op}: {name} requires a gradient but the kernel has none for it\n    Detach it.")


def differentiable_once(op: Any, name: str) -> None:
    """Register a gradient operator as not differentiable: autograd raises ArgumentError."""

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        raise ArgumentError(
            f"{name}: a gradient of its gradient was asked for but the kernel is differentiable once\n"
            f"    packproof.refs.{name} is differentiable twice."
        )

    differentiable(op, refuse, lambda *_: None)
