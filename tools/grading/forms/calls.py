"""Calls of submissions in other forms, made in the kernel's process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call


def call_with_parameters(model: torch.nn.Module, parameters: Mapping[str, Tensor | None], *arguments: Any) -> Any:
    """Call a module with these tensors in place of its parameters and buffers, by the last part of their names.

    Raises AttributeError for a name without a parameter.
    """
    names = {name.rpartition(".")[2]: name for name in model.state_dict()}
    missing = [name for name, value in parameters.items() if value is not None and name not in names]
    if missing:
        raise AttributeError(f"{type(model).__name__} has no parameter {', '.join(missing)}; it has {', '.join(names)}")
    values = {names[name]: value for name, value in parameters.items() if value is not None}
    return functional_call(model, values, arguments)


def call_into_outputs(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    input_axes: Sequence[Sequence[str]],
    output_axes: Sequence[Sequence[str]],
) -> Tensor | tuple[Tensor, ...]:
    """Call a function with outputs of zeros as its last arguments, and return these.

    inputs: tensors, the first with the dtype of the outputs, and scalars.
    input_axes, output_axes: the names of the axes of each.
    """
    pairs = zip(inputs, input_axes, strict=True)
    sizes = {axis: n for x, axes in pairs if isinstance(x, Tensor) for axis, n in zip(axes, x.shape, strict=True)}
    outputs = tuple(inputs[0].new_zeros([sizes[axis] for axis in axes]) for axes in output_axes)
    function(*inputs, *outputs)
    return outputs if len(outputs) > 1 else outputs[0]
