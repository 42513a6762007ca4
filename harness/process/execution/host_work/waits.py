"""Waits of the host for a GPU, by CUPTI through torch's profiler. Waits of a compiled extension show nowhere else."""

# mypy: allow-untyped-calls

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.profiler import ProfilerActivity, profile

_CALLS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
)
_COPIES = "Memcpy DtoH"


@contextmanager
def watch_waits(device: torch.device) -> Iterator[Callable[[], list[str]]]:
    """Yields a function. After the block it returns the calls of CUDA in which the host has waited or copied."""
    if device.type != "cuda":
        yield list
        return
    of_profiler = _of_profiler()
    with _profiled() as counts:
        yield lambda: list(counts() - of_profiler)


@contextmanager
def _profiled() -> Iterator[Callable[[], Counter[str]]]:
    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    with profiler:
        yield lambda: Counter(name for event in profiler.events() or () if (name := _wait(event.name)))


@cache
def _of_profiler() -> Counter[str]:
    """The waits of the profiler itself, but those of its first start."""
    for _ in range(2):
        with _profiled() as counts:
            pass
    return counts()


def _wait(name: str) -> str:
    if name.startswith(_COPIES):
        return _COPIES
    return name if name in _CALLS else ""
