"""Guards around a kernel's memory: poison in fresh buffers, canaries around each and between the rows of an input.

A canary is a NaN in every float type and a small negative number in every integer type. It differs from buffer to
buffer: a kernel that reads canaries, or copies them to another buffer, is detected.
"""

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packproof.base.errors import KernelFault

FENCE_BYTES = 4096
# The bits of a fresh buffer: a quiet NaN with a payload that arithmetic never produces, or an absurd integer.
POISON: dict[torch.dtype, int] = {
    torch.float64: 0x7FF8DEADDEADDEAD,
    torch.float32: 0x7FC0DEAD,
    torch.bfloat16: 0x7FCD,
    torch.float16: 0x7EAD,
    torch.int64: 0xDEADBEEFDEADBEEF - (1 << 64),
    torch.int32: 0xDEADBEEF - (1 << 32),
}
_DTYPE_OF_NUMPY = {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.uint16): torch.bfloat16,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
}
_INTEGER_DTYPES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def fill_poison(tensor: Tensor) -> None:
    """Overwrite `tensor` with the poison of its dtype. Dtypes without poison (bool, int8, complex) stay as they are."""
    if tensor.dtype in POISON:
        tensor.detach().view(_INTEGER_DTYPES[tensor.itemsize]).fill_(POISON[tensor.dtype])


def is_poison(values: Tensor | NDArray[np.generic], dtype: torch.dtype | None = None) -> Tensor | NDArray[np.bool_]:
    """Which elements hold the poison pattern, bit for bit: booleans of the same shape, a tensor for a tensor.

    dtype: for a numpy array of bits, their torch dtype if numpy lacks it (bfloat16 travels as uint16 or int16).
    """
    if isinstance(values, Tensor):
        if values.dtype not in POISON:
            return torch.zeros_like(values, dtype=torch.bool)
        return values.detach().view(_INTEGER_DTYPES[values.itemsize]) == POISON[values.dtype]
    if dtype is None:
        dtype = _DTYPE_OF_NUMPY.get(values.dtype)
    if dtype not in POISON:
        return np.zeros(values.shape, dtype=bool)
    bits: NDArray[np.bool_] = values.view(f"i{values.dtype.itemsize}") == POISON[dtype]
    return bits


@dataclass(frozen=True)
class GuardedTensor:
    """A tensor between canaries."""

    name: str
    """Description of the tensor in messages."""
    tensor: Tensor
    """The tensor; a part of `buffer`."""
    buffer: Tensor
    """The whole allocation, as int16."""
    canary: int
    """The value of each int16 outside the tensor."""
    start: int
    """Index of the tensor's first element in `buffer`."""

    def check(self) -> None:
        """Raises KernelFault("memory") if a canary has changed. Leaves the tensor's elements as they are."""
        if self._is_contiguous_on_host():
            memory, n = self.buffer.numpy(), self.tensor.numel() * self.tensor.itemsize // 2
            canary = self.canary.to_bytes(2, sys.byteorder, signed=True)
            surroundings = memory[: self.start], memory[self.start + n :]
            if all(part.tobytes() == canary * len(part) for part in surroundings):
                return
        cells = distinct_elements(self.tensor.detach())
        bits = cells.view(_INTEGER_DTYPES[cells.itemsize])
        original_bits = bits.clone()
        bits.fill_(_repeat_canary(self.canary, cells.itemsize))
        is_changed = self.buffer != self.canary
        bits.copy_(original_bits)
        if is_changed.any():
            first_changed, end = (
                int(is_changed.nonzero()[0]),
                self.start + _extent(cells.shape, cells.stride()) * cells.itemsize // 2,
            )
            location = (
                "before the start of"
                if first_changed < self.start
                else "past the end of"
                if first_changed >= end
                else "between the rows of"
            )
            raise KernelFault("memory", f"wrote {location} {self.name}")

    def _is_contiguous_on_host(self) -> bool:
        """Whether the tensor is contiguous in memory of the host, at its place in the buffer."""
        return (
            self.buffer.is_cpu
            and self.tensor.is_contiguous()
            and self.tensor.data_ptr() == self.buffer.data_ptr() + self.start * self.buffer.itemsize
        )


class Guard:
    """While entered, all tensors allocated by Python code through torch lie between canaries. Empty ones hold poison.

    native: also fill allocations of C++ code, with torch's plain NaN. This switches torch's deterministic mode on; the
        caller restores it after `__exit__`.
    fence_bytes: bytes of canaries on either side, a multiple of 16.
    fill: what empty tensors of floats hold; NaN is the poison.
    """

    def __init__(self, native: bool = False, fence_bytes: int = FENCE_BYTES, fill: float = math.nan) -> None:
        self._fence_bytes = fence_bytes
        self._fill = fill
        self._fences: list[GuardedTensor] = []
        self._wrappers: dict[tuple[Any, str], Callable[..., Tensor]] = {}
        self._native = native

    def fence(
        self,
        name: str,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        leading_elements: int = 0,
    ) -> GuardedTensor:
        """A fresh tensor between canaries.

        name: description in messages.
        size, stride: in elements.
        leading_elements: elements between the start of the allocation and the tensor.
        """
        n_bytes = (_extent(size, stride) + leading_elements) * dtype.itemsize
        canary = -1 - len(self._fences) % 16  # 0xFFF0 to 0xFFFF: NaN in any float type, repeated to fill the dtype
        buffer = _TORCH_EMPTY((n_bytes + 2 * self._fence_bytes) // 2, dtype=torch.int16, device=device).fill_(canary)
        start = self._fence_bytes + leading_elements * dtype.itemsize
        # set_ instead of a view: for in-place writes and autograd it is a plain allocation
        tensor = _TORCH_EMPTY(0, dtype=dtype, device=device).set_(
            buffer.untyped_storage(), start // dtype.itemsize, size, stride
        )
        return self.watch(GuardedTensor(name, tensor, buffer, canary, start // 2))

    def watch(self, fence: GuardedTensor) -> GuardedTensor:
        """Watch a tensor fenced by another guard."""
        self._fences.append(fence)
        return fence

    def check(self) -> None:
        """Raises KernelFault("memory") for the first buffer written outside its elements."""
        for fence in self._fences:
            fence.check()

    def __enter__(self) -> "Guard":
        for owner, name, fills_poison in _FACTORIES:
            wrapper = self._wrapper(getattr(owner, name), name, fills_poison)
            self._wrappers[owner, name] = wrapper
            setattr(owner, name, wrapper)
        if self._native:
            torch._C._set_deterministic_algorithms(
                True, warn_only=True
            )  # the public name imports the compiler: seconds
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for (owner, name), wrapper in self._wrappers.items():
            if vars(owner).get(name) is not wrapper:
                continue  # the kernel replaced the function: TorchState reports it
            if owner is Tensor:
                delattr(owner, name)  # the method inherited from C shows again
            else:
                setattr(owner, name, wrapper.__wrapped__)
        self._wrappers.clear()

    def _wrapper(self, original: Callable[..., Tensor], name: str, fills_poison: bool) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def allocate(*args: Any, **kwargs: Any) -> Tensor:
            allocation = original(*args, **kwargs)
            if torch.compiler.is_compiling() or not _can_be_fenced(allocation, kwargs):
                return allocation
            size, stride = tuple(allocation.shape), allocation.stride()
            label = f"a torch.{name} of shape {size}".replace("torch.new", "Tensor.new")
            with torch.no_grad():
                tensor = self.fence(label, size, stride, allocation.dtype, allocation.device).tensor
                if fills_poison and tensor.is_floating_point() and not math.isnan(self._fill):
                    tensor.fill_(self._fill)
                elif fills_poison:
                    fill_poison(tensor)
                else:
                    tensor.copy_(allocation)
            return tensor.requires_grad_(allocation.requires_grad)

        return allocate


_TORCH_EMPTY = torch.empty
_FACTORIES: tuple[tuple[Any, str, bool], ...] = (
    (torch, "empty", True),
    (torch, "empty_like", True),
    (torch, "empty_strided", True),
    (torch, "zeros", False),
    (torch, "zeros_like", False),
    (Tensor, "new_empty", True),
    (Tensor, "new_empty_strided", True),
    (Tensor, "new_zeros", False),
)


def _can_be_fenced(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether this is a plain dense tensor in real memory, of a dtype with a poison. False for tensors placed by the
    caller (`out`, `pin_memory`), and inside a transform such as vmap: it tracks its own tensors."""
    return (
        type(tensor) is Tensor
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.dtype in POISON
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and _extent(tensor.shape, tensor.stride()) == tensor.numel()
        and not kwargs.get("pin_memory")
        and kwargs.get("out") is None
    )


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """The number of elements of memory between the first and the last one, both included."""
    return 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def distinct_elements(tensor: Tensor) -> Tensor:
    """A view with each element of memory once: an expanded axis is narrowed to its first index."""
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _repeat_canary(canary: int, itemsize: int) -> int:
    """The canary repeated to an integer of `itemsize` bytes."""
    return int.from_bytes(canary.to_bytes(2, "little", signed=True) * (itemsize // 2), "little", signed=True)
