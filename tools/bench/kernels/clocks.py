"""How work is timed: on a GPU by CUDA events, with a cold cache and after a busy wait; on a CPU by running time."""

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from packproof.bench.kernels.results import Ceilings

T = TypeVar("T")

_MOST_LEAD = 20.0
_CYCLES_PER_MS = 2_000_000  # no GPU clock is faster, so the spin lasts at least this long
_LEAST_FLUSH = 256 << 20


class Clock(Protocol):
    """Times work: a real clock, or a fake one in tests."""

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        """The result of the work, and its milliseconds."""


class HostClock:
    """Times work on the CPU: wall-clock time without the time in which this thread waited for a core.

    Other processes on a loaded machine add milliseconds of waiting to some calls. Sleeping counts as work.
    """

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        outer_start = time.perf_counter_ns()
        waiting_ns_before = _waiting_ns()
        start = time.perf_counter_ns()
        value = work()
        end = time.perf_counter_ns()
        waiting_ns = _waiting_ns() - waiting_ns_before
        if not waiting_ns:
            return value, (end - start) / 1e6
        # the thread may have waited before `start` or after `end`: only the outer time is sure to contain the wait
        outer_ns = time.perf_counter_ns() - outer_start
        return value, (outer_ns - waiting_ns) / 1e6


def _waiting_ns() -> int:
    """Nanoseconds of this thread's waiting for a core since it started; always 0 where Linux does not count them."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, IndexError):
        return 0


class DeviceClock:
    """Times work on the GPU with events.

    Before each run the L2 cache is overwritten. The GPU then spins for as long as the host needs to enqueue the work,
    so the events enclose the kernels and not the gaps in which the GPU waits for Python. Host time is measured
    elsewhere: after a wait, and with cold caches, it would be several times as long as in training.

    gpu: the functions of torch.cuda.
    allocate: a tensor of so many bytes on the GPU.
    """

    def __init__(self, gpu: Any = torch.cuda, allocate: Callable[[int], Any] | None = None) -> None:
        cache = gpu.get_device_properties(gpu.current_device()).L2_cache_size
        self._gpu = gpu
        self._flush = (allocate or _bytes_on_gpu)(max(4 * cache, _LEAST_FLUSH))
        self._lead = 1.0

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        begin, end = (self._gpu.Event(enable_timing=True) for _ in range(2))
        self._gpu.synchronize()
        self._flush.zero_()
        self._gpu._sleep(int(self._lead * _CYCLES_PER_MS))
        begin.record()
        start = time.perf_counter_ns()
        value = work()
        host = (time.perf_counter_ns() - start) / 1e6
        end.record()
        end.synchronize()
        self._lead = min(max(self._lead, 1.5 * host), _MOST_LEAD)
        return value, begin.elapsed_time(end)


def _bytes_on_gpu(n: int) -> torch.Tensor:
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def clock_for(device: str) -> Clock:
    return DeviceClock() if device == "cuda" else HostClock()


def measure_ceilings(device: str, clock: Clock) -> Ceilings:
    """The copy bandwidth in bytes per second, counting reads and writes; on a GPU also the rate of bf16 products."""
    size = 1 << 30 if device == "cuda" else 64 << 20
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * size / _best(clock, lambda: target.copy_(source))
    if device != "cuda":
        return Ceilings(copy)
    n = 4096
    a, b = (torch.randn(n, n, dtype=torch.bfloat16, device=device) for _ in range(2))
    return Ceilings(copy, 2 * n**3 / _best(clock, lambda: a @ b))


def _best(clock: Clock, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs: a ceiling is the best of the machine, not its average."""
    work()  # warm-up: loads and initializes libraries
    return min(clock.time(work)[1] for _ in range(10)) / 1e3
