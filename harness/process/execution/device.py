"""A device of torch's: its memory, and the end of its work."""

from contextlib import suppress

import torch

from packproof.base.machine import free_host_bytes


class Device:
    """What the classification of an error asks a device."""

    def __init__(self, device: torch.device) -> None:
        self.kind, self._device = device.type, device

    def synchronise(self) -> None:
        """Wait for its work. Raises RuntimeError for an error that it reports late."""
        synchronise(self._device)

    def take_error(self) -> None:
        """Take back an error that a library has left in the CUDA runtime: the next launch would report it."""
        if self.kind == "cuda":
            with suppress(RuntimeError):  # a context that is lost reports it again
                torch.zeros(1, device=self._device)

    def free_bytes(self) -> int | None:
        return free_bytes(self._device)

    def allocated_bytes(self) -> int:
        """The bytes of this process's tensors on a GPU."""
        return torch.cuda.memory_allocated(self._device)

    def has_refused_memory(self) -> bool:
        """Whether torch's allocator for a GPU has refused a request in this process."""
        return bool(torch.cuda.memory_stats(self._device).get("num_ooms"))


def synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device, including what torch keeps for reuse; None for a device that does not report it."""
    if device.type == "cpu":
        return free_host_bytes()
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached
