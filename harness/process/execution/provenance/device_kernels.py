"""The kernels that ran on a GPU, by CUPTI through torch's profiler: those that neither torch nor Triton launched.

They belong to a compiled extension, or to a library that launches through the driver.
"""

# mypy: allow-untyped-calls

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

# of torch.compile, and of the libraries that a kernel can call past torch
_OF_LIBRARIES = re.compile(
    r"triton_\w+_fused|(void )?(at::|cutlass|cublas|cudnn|cub::|thrust::)|ampere_|hopper_|sm\d+_|nvjet|volta_"
)
_TRANSFERS = ("Memcpy", "Memset")


@contextmanager
def other_kernels(triton_names: frozenset[str]) -> Iterator[Callable[[], list[str]]]:
    """Yields a function that returns, after the block, the names of the other kernels that ran in it.

    triton_names: the functions of the Triton kernels.
    """
    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    with profiler:
        yield lambda: _others(profiler, triton_names)
        torch.cuda.synchronize()


def is_of_library(name: str) -> bool:
    """Whether a kernel has the name of one of torch.compile, cuBLAS, cuDNN, CUTLASS, CUB or Thrust."""
    return _OF_LIBRARIES.match(name) is not None


def _others(profiler: profile, triton_names: frozenset[str]) -> list[str]:
    events = profiler.events() or ()
    of_torch = {
        kernel.name
        for event in events
        if event.device_type.name == "CPU" and event.name.startswith("aten::")
        for kernel in event.kernels
    }
    on_device = dict.fromkeys(event.name for event in events if event.device_type.name == "CUDA")
    return [name for name in on_device if name not in of_torch | triton_names and not name.startswith(_TRANSFERS)]
