"""The GPU that launch code asks for, where there is none: host code selects a device and sizes its grid by it.

The answers are those of an H100. A grid of another size computes the same.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import triton

from packproof.interpreter.patch import replace

PROPERTIES = SimpleNamespace(
    name="packproof's interpreter",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65_536,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
    L2_cache_size=50 * 2**20,
    total_memory=80 * 2**30,
)
_PROPERTIES_OF_DRIVER = {
    "max_shared_mem": PROPERTIES.shared_memory_per_block_optin,
    "max_num_regs": PROPERTIES.regs_per_multiprocessor,
    "multiprocessor_count": PROPERTIES.multi_processor_count,
    "warpSize": PROPERTIES.warp_size,
}


def repair() -> None:
    """Answer for CPU tensors."""
    replace(type(triton.runtime.driver), "active", _active_driver)
    replace(torch.cuda.device, "__init__", _select_no_device)
    replace(torch.cuda, "get_device_properties", _of_stand_in(PROPERTIES))
    replace(torch.cuda, "get_device_capability", _of_stand_in((PROPERTIES.major, PROPERTIES.minor)))
    replace(torch.cuda, "get_device_name", _of_stand_in(PROPERTIES.name))
    if not hasattr(torch.cpu, "device"):
        torch.cpu.device = nullcontext  # type: ignore[attr-defined]  # for `getattr(torch, device.type).device(index)`


def _select_no_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.cuda.device(x.device.index)` around a launch: the index of a CPU tensor is None, which selects nothing.

    So torch documents it, but without CUDA it raises a TypeError.
    """
    return lambda self, device: original(self, -1 if device is None else device)


class _Driver:
    """Triton's driver where there is no GPU: it has properties of one, and no target to compile for."""

    utils = SimpleNamespace(get_device_properties=lambda _device: dict(_PROPERTIES_OF_DRIVER))

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def _active_driver(original: Any) -> property:
    def active(self: Any) -> Any:
        try:
            return original.fget(self)
        except RuntimeError as error:  # there is no driver
            return _Driver(error)

    return property(active, original.fset)


def _of_stand_in(answer: Any) -> Callable[..., Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def ask(device: Any = None) -> Any:
            is_of_cpu = torch.device(device).type == "cpu" if isinstance(device, str | torch.device) else device is None
            return answer if is_of_cpu and not torch.cuda.is_available() else original(device)

        return ask

    return make
