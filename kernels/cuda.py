"""CUDA C++ kernels: compiled at run time by NVRTC, through NVIDIA's cuda.core, and launched on PyTorch's stream."""

# mypy: allow-untyped-calls

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError

_FOLDER = Path(__file__).parent
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(([^)]*)\)')
_PART = re.compile(r'#include "(?!hardware)(\w+\.cuh)"')
_PARAMETER = re.compile(r"([^,]*?)(\w+)\s*(?:,|$)")
_STATIC_SHARED = 48 * 1024  # bytes of shared memory that need no opt-in

Macros = tuple[tuple[str, str], ...]
IMPLEMENTATIONS = ("auto", "triton", "cuda")
TOKENS = {torch.float32: "FP32", torch.bfloat16: "BF16", torch.float16: "FP16"}  # their names in hardware.cuh


def uses_cuda(op: str, impl: str, refusal: str) -> bool:
    """Whether an op runs its kernels in CUDA C++. Raises ArgumentError.

    refusal: why it cannot, "" if it can.
    """
    if impl not in IMPLEMENTATIONS:
        expected = ", ".join(map(repr, IMPLEMENTATIONS))
        raise ArgumentError(f"{op}: impl is {impl!r} but one of {expected} was expected")
    if impl == "cuda" and refusal:
        raise ArgumentError(f"{op}: impl is 'cuda' but {refusal}\n    impl='triton' computes the same.")
    return impl != "triton" and not refusal


@cache
def missing_requirement(device: torch.device) -> str:
    """Why kernels cannot be compiled for a device, "" if they can."""
    if device.type != "cuda" or torch.version.hip:
        return f"it needs an NVIDIA GPU and the tensors are on {device}"
    if find_spec("cuda") is None or find_spec("cuda.core") is None:
        return 'it needs NVIDIA\'s cuda.core: pip install "packproof[cuda]"'
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs compute capability 8.0"
    return ""


@cache
def source(name: str) -> str:
    """A source with its includes expanded, except hardware.cuh: its instructions run on a GPU only."""
    return _PART.sub(lambda part: source(part[1]), (_FOLDER / name).read_text())


@cache
def signatures(name: str) -> Mapping[str, Mapping[str, str]]:
    """The parameters of each kernel in a source, in order: their C++ types by name."""
    return {
        kernel: {parameter: kind.strip() for kind, parameter in _PARAMETER.findall(parameters)}
        for kernel, parameters in _KERNEL.findall(source(name))
    }


def compile_source(name: str, target: str, macros: Macros) -> Any:
    """The cuda.core ObjectCode of a source for a target such as "sm_90", compiled once and then read from disk."""
    from cuda.core import Program, ProgramOptions  # noqa: PLC0415
    from cuda.core.utils import FileStreamProgramCache  # noqa: PLC0415

    text = source(name).replace('#include "hardware.cuh"', source("hardware.cuh"))
    options = ProgramOptions(arch=target, define_macro=list(macros), name=name)
    with FileStreamProgramCache() as program_cache:
        return Program(text, "c++", options).compile("cubin", cache=program_cache)


class Kernels:
    """The kernels of a source for one GPU and one set of macros."""

    def __init__(self, name: str, device: torch.device, macros: Macros) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        self._object_code = compile_source(name, f"sm_{major}{minor}", macros)
        self._signatures = signatures(name)
        self._device = device
        self._loaded_kernels: dict[str, Any] = {}

    def __contains__(self, kernel: str) -> bool:
        return kernel in self._signatures

    def launch(self, kernel: str, programs: int, threads: int, shared: int, arguments: Mapping[str, Any]) -> None:
        """Run `programs` blocks of `threads` threads.

        shared: dynamic shared memory in bytes.
        arguments: tensors and integers by name.
        """
        from cuda.core import Device, LaunchConfig, launch  # noqa: PLC0415

        # a thread of autograd has no context before its first call of the CUDA runtime, and the driver API needs one
        Device(self._device.index).set_current()
        values = (arguments[name] for name in self._signatures[kernel])
        launch(
            _stream(self._device, torch._C._cuda_getCurrentRawStream(self._device.index)),
            LaunchConfig(grid=programs, block=threads, shmem_size=shared),
            self._kernel(kernel, shared),
            *[value.data_ptr() if isinstance(value, Tensor) else int(value) for value in values],
        )

    def _kernel(self, name: str, shared: int) -> Any:
        if name not in self._loaded_kernels:
            kernel = self._object_code.get_kernel(name)
            if shared > _STATIC_SHARED:
                _allow_shared_memory(kernel, shared, self._device.index)
            self._loaded_kernels[name] = kernel
        return self._loaded_kernels[name]


@cache
def _stream(device: torch.device, handle: int) -> Any:
    """PyTorch's stream for cuda.core, cached: wrapping takes 11 us. device: handle 0 stands for a stream of each
    device.
    """
    from cuda.core import Stream  # noqa: PLC0415

    return Stream.from_handle(handle)


def _allow_shared_memory(kernel: Any, shared: int, device: int) -> None:
    from cuda.bindings import driver  # noqa: PLC0415

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, shared, kernel.handle, driver.CUdevice(device))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{shared} bytes of shared memory: {error}")


@cache
def kernels(name: str, device: torch.device, macros: Macros) -> Kernels:
    return Kernels(name, device, macros)
