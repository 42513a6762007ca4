"""The tensors of a call as they are when the kernel returns, before its backward pass: its outputs are judged so.

The caller reads an output at once. If the backward pass changes it, or an input, the property `memory` reports that.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from packproof.base.errors import KernelFault
from packproof.harness.process.execution.error_classification import lacks_memory
from packproof.harness.process.execution.invocation import Invocation, Tensors
from packproof.properties.calling import Call, MachineLimit

_COMPARED_ELEMENTS = 1 << 26  # elements at a time

Outliers = dict[str, tuple[int, Tensor]]


@dataclass(frozen=True)
class Snapshot:
    """The tensors of a call when the kernel returned, on its device."""

    outputs: Tensors
    """Copies of the reported rows."""
    inputs: Tensors
    """Copies of the inputs and offsets in a guarded call with a backward pass, else none."""
    outliers: Outliers
    """As in a result, of the outputs."""
    returned: Tensors
    """The returned tensors themselves: the backward pass may change them."""

    @classmethod
    def take(cls, invocation: Invocation, outputs: Tensors) -> "Snapshot":
        """The snapshot of a call that has returned these outputs. Raises KernelFault if one cannot be read."""
        call = invocation.call
        require_size(outputs, call)
        inputs = {**invocation.inputs, **invocation.metadata} if call.guard and call.wrt else {}
        return cls(
            outputs={name: _copy(name, reported_rows(name, x, call)) for name, x in outputs.items()},
            inputs={name: _copy(name, x) for name, x in inputs.items()},
            outliers=outliers("output", outputs, call),
            returned=outputs,
        )

    def outputs_after(self, call: Call) -> Tensors:
        """The reported rows of the outputs as they are now, for a call whose snapshot has inputs."""
        return {name: reported_rows(name, x, call) for name, x in self.returned.items()} if self.inputs else {}


def reported_rows(name: str, x: Tensor, call: Call) -> Tensor:
    """Of a repeated pack only the last copy's rows, and no rows of a history."""
    if call.copies > 1 and name not in call.shared:
        return x[len(x) - len(x) // call.copies :]
    return x[call.history :] if call.history and name in call.token_rows else x


def require_size(tensors: Mapping[str, Tensor], call: Call) -> None:
    """Raises KernelFault for a tensor too large to copy, whatever its storage: `expand` makes any shape."""
    for name, tensor in tensors.items():
        max_bytes = call.max_result_bytes * (call.copies + call.history)
        if (n_bytes := tensor.numel() * tensor.element_size()) > max_bytes:
            raise KernelFault("malformed", f"{name} has shape {tuple(tensor.shape)}, {n_bytes:,} bytes")


def copy_to_host(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies of the tensors by name. Raises MachineLimit if the host lacks the memory for one."""
    copies = {}
    for name, x in tensors.items():
        try:
            with _unreadable_as_fault(name):
                copies[name] = x.detach().to("cpu", copy=True)
        except RuntimeError as error:
            raise MachineLimit(f"{name} does not fit into the memory of the host: {error}") from error
    return copies


def _copy(name: str, x: Tensor) -> Tensor:
    with _unreadable_as_fault(name):
        return x.detach().clone()


@contextmanager
def _unreadable_as_fault(name: str) -> Iterator[None]:
    """Raises KernelFault if torch cannot read the tensor, for example after it escaped `vmap`."""
    try:
        yield
    except RuntimeError as error:
        if lacks_memory(error):
            raise
        text = str(error).partition("\n")[0]
        raise KernelFault("malformed", f"returned {name} as a tensor that cannot be read: {text}") from error


def outliers(kind: str, tensors: Tensors, call: Call) -> Outliers:
    """For each tensor of a repeated pack the copy farthest from the last, by "kind:name", found on the device."""
    farthest = {}
    for name, x in tensors.items():
        if call.copies == 1 or name in call.shared or not x.numel() or len(x) % call.copies:
            continue
        copies = x.detach().reshape(call.copies, -1, *x.shape[1:])
        if (copy_index := _farthest_copy(copies)) is not None:
            farthest[f"{kind}:{name}"] = copy_index, copies[copy_index].to("cpu", copy=True)
    return farthest


def _farthest_copy(copies: Tensor) -> int | None:
    """The copy with the largest difference from the last, NaN and Inf first; None if all are equal."""
    last_copy, largest, farthest = copies[-1], 0.0, None
    step = max(1, _COMPARED_ELEMENTS // last_copy.numel())
    for start in range(0, len(copies), step):
        chunk = copies[start : start + step]
        distances = torch.where(
            (chunk == last_copy) | (chunk.isnan() & last_copy.isnan()), 0.0, (chunk.float() - last_copy.float()).abs()
        )
        copy_distances = distances.nan_to_num(nan=torch.inf).flatten(1).amax(1)
        if float(copy_distances.max()) > largest:
            largest, farthest = float(copy_distances.max()), start + int(copy_distances.argmax())
    return farthest
