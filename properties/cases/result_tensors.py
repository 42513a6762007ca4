"""The tensors of a result: its form is checked, and appended rows are cut off."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from packproof.base.axes import Axes, role
from packproof.base.errors import KernelFault
from packproof.base.names import SHORT_DTYPES
from packproof.properties.calling.call import Result
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.sample import Sample

DETACHED = "came back detached"  # in the text of a fault

Tensors = Mapping[TensorKey, Tensor]


def tensors_by_key(sample: Sample, result: Result, *, gradients: bool | Collection[str]) -> Tensors:
    """The result's tensors by key. Raises KernelFault for a wrong shape or dtype, or if outputs are detached.

    gradients: whether it was differentiated, or the inputs by which it was. Outputs may not depend on some of them.
    """
    tensors: dict[TensorKey, Tensor] = {}
    for name in sample.outputs:
        _check_form(sample, name, result.outputs[name], dtype_of(sample.op, name, sample.token_dtype_name))
        tensors[TensorKey(name)] = result.outputs[name]
    if gradients is True and sample.wrt and sum(sample.lengths) and not result.gradients:
        raise KernelFault("malformed", f"{' and '.join(sample.outputs)} {DETACHED}: no gradient reaches any input")
    for name in sample.differentiated(gradients):
        g = result.gradients.get(name)
        tensors[gradient(name)] = torch.zeros_like(sample.inputs[name]) if g is None else g
    return tensors


def _check_form(sample: Sample, name: str, y: Tensor, dtype: torch.dtype) -> None:
    """Raises KernelFault unless an output has its declared shape and this dtype."""
    axes = " ".join(sample.axes[name]) or "a scalar"
    if tuple(y.shape) != sample.shape(name):
        raise KernelFault("malformed", f"{name} has shape {tuple(y.shape)}, expected {sample.shape(name)} ({axes})")
    if y.dtype != dtype:
        raise KernelFault("malformed", f"{name} is {_dtype_name(y.dtype)}, expected {_dtype_name(dtype)}")


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return SHORT_DTYPES.get(name, name)


def without_filler(sample: Sample, result: Result) -> Result:
    """The result of the sample, without the rows and sequences appended to it."""
    n = len(sample.lengths)

    def end(axes: Axes) -> int | None:
        return {"token": sample.offsets_of(axes)[-1] + sample.slack, "sequence": n, "shared": None}[role(axes)]

    def cut(name: str, x: Tensor) -> Tensor:
        return x[: end(sample.axes[name])] if x.ndim else x

    def cut_call_tensors(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: cut(name.removeprefix("cotangent:"), x) for name, x in tensors.items()}

    def cut_inputs(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        offsets = {name: inputs[name][: n + 1] for name in sample.metadata if name in inputs}
        return {**cut_call_tensors({name: x for name, x in inputs.items() if name not in offsets}), **offsets}

    return replace(
        result,
        outputs=cut_call_tensors(result.outputs),
        outliers={name: (k, cut(name.partition(":")[2], x)) for name, (k, x) in result.outliers.items()},
        gradients=cut_call_tensors(result.gradients),
        inputs_after=cut_inputs(result.inputs_after),
        inputs_at_return=cut_inputs(result.inputs_at_return),
        outputs_after=cut_call_tensors(result.outputs_after),
    )
