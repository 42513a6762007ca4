"""The cores and the memory that this process may use."""

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SYSTEM = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")
_RESERVE = 1 << 28  # bytes for what runs beside


def available_cores() -> int:
    """How many cores this process may use: fewer than the machine has, in a container or under `taskset`.

    The workers of pytest-xdist share them: with more processes than cores, each check starts as many kernels anew.
    """
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "")
    return max(len(os.sched_getaffinity(0)) // (int(workers) if workers.isdecimal() else 1), 1)


def seconds_waited() -> float:
    """How long the main thread of this process has waited for a core, while others ran."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def free_host_bytes() -> int:
    """Free memory of the system, within the limits of its container and of this process (`ulimit -v`)."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", _SYSTEM.read_text())
    free = min(int(match[1]) * 1024 if match else sys.maxsize, _free_container_bytes())
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return free if limit == resource.RLIM_INFINITY else min(free, limit - _address_space())


@contextmanager
def limited_to_free_memory() -> Iterator[None]:
    """Inside it an allocation beyond the free memory raises MemoryError, or RuntimeError in torch.

    Without it the system grants the allocation, and ends some process once the memory is written.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + max(free_host_bytes() - _RESERVE, 0)
    if limits[0] != resource.RLIM_INFINITY:
        limit = min(limit, limits[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def lacks_host_memory(error: BaseException) -> bool:
    """Whether an exception reports an allocation that failed."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "bad_alloc" in str(error)


def _address_space() -> int:
    """The bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _free_container_bytes() -> int:
    """Free memory below the container's limit, with the files that it caches; sys.maxsize without a limit."""
    try:
        limit = int((_CONTAINER / "memory.max").read_text())
        used = int((_CONTAINER / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no such file, or "max"
        return sys.maxsize
    return max(limit - used + (int(cached[1]) if cached else 0), 0)
