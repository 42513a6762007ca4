"""CUDA C++ kernels: compiled at run time by NVRTC, through NVIDIA's cuda.core, and launched on PyTorch's stream."""

# mypy: allow-untyped-calls

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError

_FOLDER = Path(__file__).parent
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(([^)]*)\)')
_PART = re.compile(r'#include "(?!(?:hardware|hopper|wgmma)\.cuh)(\w+\.cuh)"')
_INSTRUCTIONS = re.compile(r'#include "((?:hardware|hopper|wgmma)\.cuh)"')
_PARAMETER = re.compile(r"([^,]*?)(\w+)\s*(?:,|$)")
_STATIC_SHARED = 48 * 1024  # bytes of shared memory that need no opt-in

_ptx_pass: Callable[[str], str] | None = None

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


def missing_hopper(device: torch.device) -> str:
    """Why kernels for Hopper cannot be compiled for a device, "" if they can."""
    missing = missing_requirement(device)
    if not missing and torch.cuda.get_device_capability(device) != (9, 0):
        return "it needs compute capability 9.0"
    return missing


@cache
def source(name: str) -> str:
    """A source with its includes expanded, except hardware.cuh, hopper.cuh and wgmma.cuh: their instructions run on a
    GPU only.
    """
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

    text = _INSTRUCTIONS.sub(lambda part: source(part[1]), source(name))
    options = ProgramOptions(arch=target, define_macro=list(macros), name=Path(name).name)
    if _ptx_pass is not None:
        ptx = _ptx_pass(Program(text, "c++", options).compile("ptx").code.decode().rstrip("\0"))
        return Program(ptx, "ptx", ProgramOptions(arch=target, name=Path(name).name)).compile("cubin")
    with FileStreamProgramCache() as program_cache:
        return Program(text, "c++", options).compile("cubin", cache=program_cache)


@contextmanager
def changed_ptx(ptx_pass: Callable[[str], str]) -> Iterator[None]:
    """Kernels asked for in here are compiled from PTX that a pass has changed. Others are compiled as ever."""
    global _ptx_pass  # noqa: PLW0603  (autograd compiles in threads of its own, which no context variable reaches)
    before, _ptx_pass = _ptx_pass, ptx_pass
    try:
        yield
    finally:
        _ptx_pass = before


class Kernels:
    """The kernels of a source for one GPU and one set of macros."""

    def __init__(self, name: str, device: torch.device, macros: Macros) -> None:
        self._object_code = compile_source(name, _target(name, device), macros)
        self._signatures = signatures(name)
        self._device = device
        self._loaded_kernels: dict[str, Any] = {}

    def __contains__(self, kernel: str) -> bool:
        return kernel in self._signatures

    def launch(self, kernel: str, programs: int, threads: int, shared: int, arguments: Mapping[str, Any]) -> None:
        """Run `programs` blocks of `threads` threads.

        shared: dynamic shared memory in bytes.
        arguments: tensors, tensor maps and integers by name.
        """
        from cuda.core import Device, LaunchConfig, launch  # noqa: PLC0415

        # a thread of autograd has no context before its first call of the CUDA runtime, and the driver API needs one
        Device(self._device.index).set_current()
        values = [arguments[name] for name in self._signatures[kernel]]
        launch(
            _stream(self._device, torch._C._cuda_getCurrentRawStream(self._device.index)),
            LaunchConfig(grid=programs, block=threads, shmem_size=shared),
            self._kernel(kernel, shared),
            *[value if type(value) is int else _argument(value) for value in values],
        )

    def _kernel(self, name: str, shared: int) -> Any:
        if name not in self._loaded_kernels:
            kernel = self._object_code.get_kernel(name)
            if shared > _STATIC_SHARED:
                _allow_shared_memory(kernel, shared, self._device.index)
            self._loaded_kernels[name] = kernel
        return self._loaded_kernels[name]


def _target(name: str, device: torch.device) -> str:
    """What a source is compiled for: instructions of wgmma.cuh exist on one generation only, with an "a"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" + "a" * ("wgmma.cuh" in _INSTRUCTIONS.findall(source(name)))


def _argument(value: Any) -> Any:
    """As cuda.core takes it: an address, an integer or a tensor map."""
    if isinstance(value, Tensor):
        return value.data_ptr()
    return int(value) if isinstance(value, int) else value


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


def tensor_map(tensor: Tensor, box: tuple[int, ...], swizzle: int) -> Any:
    """A tensor of 2 or 3 axes as hopper.cuh's tensor_map, an argument of a kernel; it keeps no reference to the tensor.

    tensor: its last axis is contiguous, its address and the strides of the others are multiples of 16 bytes, and no
        axis is empty.
    box: elements along each axis that one copy moves, at most 256, of the last axis at most `swizzle` bytes.
    swizzle: 32, 64 or 128 bytes, or 0 for rows one after another.
    """
    return _encode(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.element_size(), box, swizzle)


class _Place:
    """Memory of a GPU that nothing refers to, for cuda.core."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
        # dtypes by size: numpy, which names them, has no bfloat16
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": tuple(shape), "strides": tuple(size * stride for stride in strides),
            "typestr": f"<u{size}", "version": 3,
        }  # fmt: skip


@lru_cache(maxsize=1024)
def _encode(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int, box: tuple[int, ...], swizzle: int
) -> Any:
    """A tensor map holds numbers alone, so that it is encoded once for the tensors that come to lie at one place."""
    from cuda.core import _tensor_map as driver  # noqa: PLC0415  (the names of its options are nowhere else)
    from cuda.core.utils import StridedMemoryView  # noqa: PLC0415

    place = _Place(address, shape, strides, size)
    return StridedMemoryView.from_cuda_array_interface(place, stream_ptr=-1).as_tensor_map(
        box,
        swizzle=driver.TensorMapSwizzle[f"SWIZZLE_{swizzle}B" if swizzle else "NONE"],
        l2_promotion=driver.TensorMapL2Promotion.L2_128B,
    )


def kernels(name: str, device: torch.device, macros: Macros) -> Kernels:
    """The kernels of a source, compiled once."""
    return _kernels(name, device, macros, _ptx_pass)


@cache
def _kernels(name: str, device: torch.device, macros: Macros, _: Callable[[str], str] | None) -> Kernels:
    return Kernels(name, device, macros)
