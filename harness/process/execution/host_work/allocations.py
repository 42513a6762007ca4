"""The memory left allocated by calls of a kernel."""

# mypy: allow-untyped-calls

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_alive: dict[StorageWeakRef, int] = {}  # storages of earlier calls in this process, with their bytes


def note(values: Iterable[Any]) -> None:
    """Follow the storages of the tensors among these values for as long as they live."""
    for x in values:
        if type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided:
            storage = x.untyped_storage()
            _alive[StorageWeakRef(storage)] = storage.nbytes()


def live_bytes(device: torch.device) -> int:
    """The allocated bytes of a GPU; on a CPU, the bytes of the tensors noted so far."""
    if not _expire():
        gc.collect()
        _expire()
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return sum(_alive.values())


def _expire() -> bool:
    """Forget freed storages. Returns whether none is left."""
    for reference in [reference for reference in _alive if reference.expired()]:
        del _alive[reference]
    return not _alive
