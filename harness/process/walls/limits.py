"""Limits of a process that runs kernels, which it and all that it starts cannot raise."""

import os
import resource
from contextlib import suppress

from packproof.base.machine import available_cores

_PROCESSES, _PROCESSES_PER_CORE = 512, 64  # of all kernels of a run; beside a GPU each has a dozen threads


def max_processes() -> int:
    """Of all kernels of a run together."""
    return _PROCESSES + _PROCESSES_PER_CORE * available_cores()


def max_memory() -> int:
    """Bytes of one process: all that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit_resources() -> None:
    """Limit processes and memory, and let the system, where it has no memory left, end this process first."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NPROC, max_processes())
    _lower(resource.RLIMIT_DATA, max_memory())
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # there is none in some containers
        file.write("1000")


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(OSError, ValueError):  # the probes report it
        resource.setrlimit(kind, (value, value))
