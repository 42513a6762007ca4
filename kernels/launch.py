"""From a call to a launch: the device, the layout and precision of tensors, and the compiled forms of a kernel."""

# mypy: allow-untyped-defs, allow-untyped-decorators

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.runtime import JITFunction

from packproof.base.errors import ArgumentError
from packproof.interpreter import repair_if_used
from packproof.kernels.variant import Variant

if triton.knobs.runtime.interpret:
    repair_if_used()

POINTERS = {torch.float64: "*fp64", torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


# promises of a kernel that computes each row of a token by itself
ROW_WISE_PROMISES: dict[str, Any] = {
    "grid": "token",
    "chunk": 16,
    "compute": "fp32",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
}

# kinds of GPU for which tiles and launch options are chosen, each with its targets in the compile tier
ARCHITECTURES = {"hopper": ("sm_90",), "nvidia": ("sm_80", "sm_100"), "amd": ("gfx942",)}


@cache
def architecture(device: torch.device) -> str:
    """The kind of GPU of a device, one of ARCHITECTURES."""
    if torch.version.hip:
        return "amd"
    return "hopper" if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9 else "nvidia"


@triton.jit
def widen(value):
    """The value in the precision of the computation: fp64 stays fp64, all else is fp32."""
    return value.to(tl.float64 if value.dtype == tl.float64 else tl.float32)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that `widen` computes in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def cdiv(n: int, size: int) -> int:
    """n / size, rounded up. triton.cdiv takes 1.5 us."""
    return -(-n // size)


def contiguous_rows(tensor: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense, otherwise a contiguous copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def pad_last_axes(tensor: Tensor, *amounts: int) -> Tensor:
    """The tensor with zeros appended to its last axes, last axis first. Itself if all amounts are 0."""
    return functional.pad(tensor, [n for amount in amounts for n in (0, amount)]) if any(amounts) else tensor


def align_rows(tensor: Tensor, n: int) -> Tensor:
    """The tensor itself if its last axis is dense and its rows start at multiples of n elements, otherwise a padded
    copy.
    """
    padding = -tensor.shape[-1] % n
    fits = tensor.stride(-1) == 1 and not padding and all(stride % n == 0 for stride in tensor.stride()[:-1])
    if fits and (not tensor.is_cuda or tensor.data_ptr() % n == 0) and tensor.stride(0) < 2**24:
        return tensor
    return pad_last_axes(tensor, padding).clone(memory_format=torch.contiguous_format)


def is_on_host(tensor: Any) -> bool:
    """Whether the values of a call can be read without waiting for a device."""
    return isinstance(tensor, Tensor) and tensor.device.type == "cpu"


def runs_interpreted(kernel: Any) -> bool:
    """Whether Triton runs the kernel in its interpreter."""
    return not isinstance(kernel, JITFunction)


def launch(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any], **options: Any) -> None:
    """Launch a kernel with its arguments by position, the faster way in Triton. Other arguments are ignored."""
    kernel[grid](*[arguments[name] for name in kernel.arg_names], **options)


def require_device(op: str, tensor: Tensor, kernel: Any) -> None:
    """Raise ArgumentError unless `kernel` can run on the device of `tensor`.

    On a CPU it can run in the interpreter, once that is repaired.
    """
    if tensor.is_cuda:
        return
    if runs_interpreted(kernel):
        repair_if_used()  # refuses if TRITON_INTERPRET was set after triton was imported
    else:
        raise ArgumentError(
            f"{op}: the tensors are on {tensor.device}, but the Triton kernel runs on a GPU: move them to a GPU, or "
            f"set TRITON_INTERPRET=1 before triton is imported, to interpret it, or call packproof.refs.{op}"
        )


def require_dtype(op: str, name: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Raise ArgumentError unless the tensor, the first input of the op, has one of the dtypes.

    dtypes: without float64, for which the error names the reference.
    """
    if tensor.dtype not in dtypes:
        actual_dtype, *leading_dtypes, last_dtype = (
            str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, *dtypes)
        )
        raise ArgumentError(
            f"{op}: {name} is {actual_dtype} but {', '.join(leading_dtypes)} or {last_dtype} was expected\n"
            f"    packproof.refs.{op} computes in float64."
        )


def specializations(
    name: str, kernel: Any, pointers: Mapping[str, str | None], constexprs: Mapping[str, Any], num_warps: int
) -> list[Variant]:
    """The specializations of a kernel that Triton chooses between: every specialized argument is a multiple of 16, or
    none is.

    pointers: Triton type by argument, None for an absent tensor. Names unknown to the kernel are ignored.
    constexprs: values of constexpr arguments. Every other argument is an i32.
    """
    constants = {a: None for a in kernel.arg_names if pointers.get(a, "") is None} | dict(constexprs)
    signature = {a: "constexpr" if a in constants else pointers.get(a) or "i32" for a in kernel.arg_names}
    specialized_arguments = tuple(p.name for p in kernel.params if p.name not in constants and not p.do_not_specialize)
    forms = {"aligned": specialized_arguments, "unaligned": ()} if specialized_arguments else {"any": ()}
    return [
        Variant(f"{name}-{form}", kernel, signature, constants, divisible, num_warps)
        for form, divisible in forms.items()
    ]
