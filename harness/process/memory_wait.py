"""Waits for memory: where the system has none left it ends processes, those of kernels first."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from packproof.base.errors import KernelFault, OutOfMemory

T = TypeVar("T")
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further try
_OWN_BYTES = 1 << 30  # of a process that has more, the system's kill is its own doing


class ProcessKilled(KernelFault):
    """The process received SIGKILL: from the kernel itself, from another one, or from the system for lack of memory.

    lacked_memory: whether the system lacked memory through no fault of this process.
    """

    def __init__(self, message: str, *, lacked_memory: bool = False) -> None:
        super().__init__("crashed", message)
        self.lacked_memory = lacked_memory


class MemoryWatch:
    """Whether the system has ended a process for want of memory since this object was made."""

    def __init__(self) -> None:
        self._kills = count_kills()

    def explains_kill(self, peak_bytes: int) -> bool:
        """Whether that may be why a process was killed, which had no more memory than so many bytes."""
        return count_kills() > self._kills and peak_bytes < _OWN_BYTES


class MemoryWait:
    """The pauses between tries of what the system ends for want of memory."""

    def __init__(self) -> None:
        self._n_kills = 0

    def repeat(self, attempt: Callable[[], T]) -> T:
        """The result of an attempt, made again as long as the system ends its process; the kernel is not at fault.

        Raises OutOfMemory if there is no memory in time.
        """
        while True:
            try:
                return attempt()
            except ProcessKilled as fault:
                self._pause_after(fault)

    def _pause_after(self, fault: ProcessKilled) -> None:
        """Wait, each time longer. Raises OutOfMemory after the last try, and the fault if it has another reason."""
        if not fault.lacked_memory:
            raise fault
        self._n_kills += 1
        if self._n_kills > len(_PAUSES):
            raise OutOfMemory(
                f"this machine lacks memory: the system has ended the kernel's process {self._n_kills} times within "
                f"{sum(_PAUSES):.0f} s; run fewer programs beside it"
            ) from fault
        time.sleep(_PAUSES[self._n_kills - 1])


def count_kills() -> int:
    """How many processes the system has ended for want of memory, its own or that of a control group; 0 if unknown."""
    with suppress(OSError), open("/proc/vmstat") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0
