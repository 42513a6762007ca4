"""A call with its tensors on the device: run it, differentiate it, and record the stage of an error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.binding import Binding
from packproof.base.errors import KernelFault
from packproof.base.light_torch import vector_jacobian_product
from packproof.base.provenance.computed import Computed
from packproof.base.provenance.host_work import HostWork
from packproof.harness.process.execution.device import synchronise
from packproof.properties.calling import Call

Tensors = dict[str, Tensor]

BACKWARD = "in the backward pass: "  # the stage of a call that has returned its outputs


@dataclass
class Invocation:
    """`call` of `function`, with its tensors on the device."""

    function: Callable[..., Any]
    call: Call
    inputs: Tensors
    cotangents: Tensors
    metadata: Tensors
    """The offsets, by argument name."""
    binding: Binding
    """How the function takes its arguments."""
    stage: str = ""
    """The prefix of an error's message."""
    operators: int = 0
    """The number of operators registered with torch and checked."""
    computed: tuple[Computed, ...] = ()
    """Who computed it, of a traced call."""
    host_work: tuple[HostWork, ...] = ()
    """What the host did, of a counted call."""
    live_bytes: int = 0
    """The memory left allocated by earlier calls, of a counted call."""
    perturbed_calls: int = 0
    """The number of calls under perturbation."""
    different_calls: int = 0
    """How many of these had other bits than the first call."""

    @property
    def device(self) -> torch.device:
        return self.metadata["cu_seqlens"].device

    def forward(self, function: Callable[..., Any] | None = None) -> Tensors:
        """Outputs by name, of the function or of a variant of it. Shapes and dtypes are not checked here."""
        target = self.function if function is None else function  # a compiled nn.Module has no truth value
        arguments = {**self.inputs, **self.metadata, **self.call.options}
        by_position, by_name = self.binding.kernel_arguments(arguments, self._n_rows)
        result = target(*by_position, **by_name)
        return _named_outputs(result, self.call.outputs, self.device)

    def backward(self, outputs: Mapping[str, Tensor], **options: bool) -> Tensors:
        """The gradients reached by autograd, by input name. options: of `torch.autograd.grad`."""
        return vjp(outputs, self.cotangents, {name: self.inputs[name] for name in self.call.wrt}, **options)

    def _n_rows(self) -> int:
        """Rows of the pack, slack included."""
        return len(self.inputs[next(name for name in self.call.token_rows if name in self.inputs)])

    def synchronise(self) -> None:
        """Wait for the device, to see an error at its own stage."""
        synchronise(self.device)


def vjp(
    outputs: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
    wrt: Mapping[str, Tensor],
    **options: bool,
) -> Tensors:
    """The gradients reached by autograd, by input name. options: of `torch.autograd.grad`."""
    pairs = differentiable_outputs(outputs, cotangents)
    if not pairs or not wrt:
        return {}
    heads, incoming = zip(*pairs, strict=True)
    gradients = vector_jacobian_product(heads, list(wrt.values()), incoming, **options)
    return {name: g for name, g in zip(wrt, gradients, strict=True) if g is not None}


def differentiable_outputs(
    outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Outputs with their incoming gradients. Detached outputs and outputs of another shape are left out."""
    return [
        (outputs[name], cotangent)
        for name, cotangent in cotangents.items()
        if outputs[name].requires_grad and outputs[name].shape == cotangent.shape
    ]


def _named_outputs(result: Any, names: tuple[str, ...], device: torch.device) -> dict[str, Tensor]:
    """The returned tensors by name. Shapes and dtypes are not checked here."""
    expected = f"expected {names[0]}" if len(names) == 1 else f"expected a tuple ({', '.join(names)})"
    if len(names) == 1:
        if not isinstance(result, Tensor):
            raise KernelFault("malformed", f"returned {_describe_value(result)}, {expected}")
        result = (result,)
    elif not isinstance(result, tuple) or len(result) != len(names):
        raise KernelFault("malformed", f"returned {_describe_value(result)}, {expected}")
    for name, tensor in zip(names, result, strict=True):
        if type(tensor) not in (Tensor, torch.nn.Parameter):  # a subclass can redefine comparison
            raise KernelFault("malformed", f"returned {_describe_value(tensor)} for {name}, expected a torch.Tensor")
        if tensor.device != device:
            raise KernelFault("malformed", f"returned {name} on {tensor.device}, expected {device}")
        if tensor.layout is not torch.strided or not tensor.is_floating_point():
            kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
            raise KernelFault("malformed", f"returned {name} as {kind}, expected a dense floating tensor")
    return dict(zip(names, result, strict=True))


def _describe_value(value: Any) -> str:
    if value is None:
        return "None"
    if type(value) in (Tensor, torch.nn.Parameter):
        return "one tensor"
    if isinstance(value, tuple | list):
        return f"a {'tuple' if isinstance(value, tuple) else 'list'} of {len(value)}"
    return f"an object of type {type(value).__name__}"
