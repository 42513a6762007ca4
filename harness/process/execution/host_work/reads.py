"""Reads of a device's tensors by the host: on a GPU it waits for each of them, or copies.

On a CPU nothing waits: all tensors count as the device's, unless `torch.tensor` made them of numbers of Python or an
adapter copied them to the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import arg_tree_leaves

from packproof.harness.process.execution.provenance.departures import replaced

_READS = frozenset(
    (  # noqa: SIM905
        "_local_scalar_dense nonzero masked_select equal bincount _unique _unique2 unique_dim unique_consecutive "
        "unique_dim_consecutive is_nonzero allclose"
    ).split()
)
COPIES = frozenset({"_to_copy", "lift_fresh"})
"""Operators by which tensors go to a device or to the host; the second is that of `torch.tensor`."""
_INDEXING = frozenset({"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"})
_METHODS = ("tolist", "numpy", "__array__", "__dlpack__", "cpu", "to")  # no operator of torch shows them on a CPU
_MASKS = (torch.bool, torch.uint8)

Record = Callable[[str], None]
"""Called with the name of a reading function."""


class HostTensors:
    """The tensors made on the host in a call. Their storages are kept, and no other one gets the same address.

    device: of the call; on a CPU, all other tensors stand for a device's.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cpu = device.type == "cpu"
        self._storages: dict[int, Any] = {}

    def add(self, tensor: Tensor) -> None:
        """Note a tensor of the host."""
        self._storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()

    def follow(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note the results of an operator on the host: of `torch.tensor`, or of such tensors alone."""
        operands = _tensors(*args, **kwargs)
        if op.overloadpacket.__name__ == "lift_fresh" or (operands and all(map(self.has, operands))):
            for x in _tensors(result):
                self.add(x)

    def has(self, x: Tensor) -> bool:
        """Whether a tensor is one of them, and free to read."""
        return x.is_cpu and not (self._on_cpu and x.untyped_storage()._cdata not in self._storages)


def reading_operator(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], host: HostTensors) -> str:
    """The name of an operator of torch if the host reads a tensor in a call with these arguments, else ""."""
    name = str(op.overloadpacket.__name__)
    if name in _READS:
        read = [x for x in _tensors(*args) if x.numel()]
    elif name in _INDEXING:
        read = [] if _fills(name, args) else [x for x in _tensors(*args[1:2]) if x.dtype in _MASKS]
    elif name == "repeat_interleave":
        read = [] if kwargs.get("output_size") is not None else _tensors(*args[:1])
    elif name in ("_to_copy", "copy_"):
        read = [x for x in _tensors(*args) if x.is_cuda] if _is_to_host(name, args, kwargs) else []
    else:
        read = []
    return "" if all(map(host.has, read)) else f"aten::{name}"


def _fills(name: str, args: Sequence[Any]) -> bool:
    """Whether a mask selects where one number is written: torch then selects on the device."""
    return name not in ("index", "_unsafe_index") and args[2].numel() == 1 and not (len(args) > 3 and args[3])


def _is_to_host(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name == "copy_":
        return bool(args[0].is_cpu)
    return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"


def _tensors(*values: Any, **more: Any) -> list[Tensor]:
    return [x for x in arg_tree_leaves(*values, **more) if isinstance(x, Tensor)]


@contextmanager
def watch_methods(record: Record, host: HostTensors) -> Iterator[None]:
    """Report the methods by which values of a tensor leave torch, on a CPU."""
    with ExitStack() as replacements:
        for name in _METHODS:
            replacements.enter_context(replaced(Tensor, name, _reporting(name, record, host)))
        yield


def _reporting(name: str, record: Record, host: HostTensors) -> Callable[..., Any]:
    original = getattr(Tensor, name)

    def read(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_to_host = name != "to" or "cpu" in (kwargs.get("device"), *args[:1])
        if is_to_host and x.is_cpu and x.numel() and not host.has(x):
            record(f"Tensor.{name}")
        return original(x, *args, **kwargs)

    return read
