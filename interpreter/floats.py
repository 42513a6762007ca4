"""Floating-point repairs of Triton's interpreter: bfloat16, rounding, tf32, fused multiply-add, NaN in a maximum.

Triton's interpreter keeps bfloat16 as the uint16 of its bits. Arithmetic on it is done in float32 and rounded to
nearest even after every operation, as torch does op by op.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter as shipped

from packproof.interpreter.patch import replace

Builder = shipped.InterpreterBuilder
Handle = shipped.TensorHandle
Make = Callable[[Callable[..., Any]], Callable[..., Any]]

_FLOAT8 = "float8 is not modelled by Triton's interpreter: check this kernel on a GPU"
_COMPARISONS = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 bit patterns, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bit patterns of the nearest bfloat16, ties to even; every NaN becomes 0x7FC0, as in torch."""
    bits = _bits(values)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), nearest.astype(np.uint16))


def float32_to_tf32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """`values` rounded to tf32, ties to even: the 10 explicit mantissa bits kept by tensor cores."""
    bits = _bits(values)
    nearest = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), nearest.view(np.float32), values)


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.require(values, dtype=np.float32, requirements="C").view(np.uint32).reshape(np.shape(values))


def is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def widen(handle: Any) -> Any:
    """A bfloat16 handle as float32; any other as it is."""
    return Handle(bfloat16_to_float32(handle.data), tl.float32) if is_bfloat16(handle) else handle


def narrow(handle: Any) -> Any:
    """A float32 handle rounded to bfloat16."""
    return Handle(float32_to_bfloat16(handle.data.astype(np.float32)), tl.bfloat16)


def repair() -> None:
    """Replace the operations of the interpreter's builder whose results differ from a GPU's."""
    for name, make in _REPAIRS.items():
        replace(Builder, name, make)
    for name, operation in {"create_maxnumf": np.fmax, "create_minnumf": np.fmin}.items():
        replace(Builder, name, _elementwise(operation))
    # Triton's interpreter lacks constants of bfloat16
    Builder.get_bf16 = lambda self, value: narrow(Handle(np.array([value], dtype=np.float32), tl.float32))


def _elementwise(operation: Any) -> Make:
    return lambda original: lambda self, lhs, rhs: self.binary_op(lhs, rhs, operation)


def _binary(original: Callable[..., Any]) -> Callable[..., Any]:
    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        wide = (widen(lhs), widen(rhs))
        if op in _COMPARISONS:  # as shipped, the result claims the operands' type and later casts misread it
            return Handle(op(wide[0].data, wide[1].data), tl.int1)
        result = original(self, *wide, op)
        return narrow(result) if is_bfloat16(lhs) else result

    return binary_op


def _unary(original: Callable[..., Any]) -> Callable[..., Any]:
    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        result = original(self, widen(arg), op)
        return narrow(result) if is_bfloat16(arg) else result

    return unary_op


def _clamp(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_clampf(self: Any, arg: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        if propagate_nans == shipped._ir.PROPAGATE_NAN.NONE:
            return self.binary_op(self.binary_op(arg, low, np.fmax), high, np.fmin)
        return self.binary_op(self.binary_op(arg, low, np.maximum), high, np.minimum)

    return create_clampf


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        target = dst_type.scalar
        if src.dtype.scalar == target:
            return Handle(src.data, target)
        if target == tl.bfloat16:
            return narrow(original(self, src, tl.float32))
        wide = widen(src)
        return wide if wide.dtype == target else original(self, wide, dst_type)

    return cast_impl


def _convert(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
        if dst_type.scalar.is_fp8() or src.dtype.scalar.is_fp8():
            raise NotImplementedError(_FLOAT8)
        return original(self, src, dst_type, rounding)

    return create_fp_to_fp


def _fused_multiply_add(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar == tl.float64:
            return original(self, x, y, z)
        exact = widen(x).data.astype(np.float64) * widen(y).data + widen(z).data
        if is_bfloat16(z):
            return narrow(Handle(exact.astype(np.float32), tl.float32))
        return Handle(exact.astype(z.data.dtype), z.dtype.scalar)

    return create_fma


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *args: Any) -> Any:
        dtype = a.dtype.scalar
        if dtype.is_fp8():
            raise NotImplementedError(_FLOAT8)
        if dtype == tl.float32 and input_precision == shipped._ir.INPUT_PRECISION.TF32:
            a, b = (Handle(float32_to_tf32(operand.data), tl.float32) for operand in (a, b))
        if dtype in (tl.bfloat16, tl.float16):  # products in float32, as in tensor cores
            lhs, rhs = (widen(operand).data.astype(np.float32) for operand in (a, b))
            return Handle((np.matmul(lhs, rhs) + d.data).astype(d.data.dtype), d.dtype.scalar)
        return original(self, a, b, d, input_precision, *args)

    return create_dot


_REPAIRS: dict[str, Make] = {
    "binary_op": _binary,
    "unary_op": _unary,
    "create_clampf": _clamp,
    "cast_impl": _cast,
    "create_fp_to_fp": _convert,
    "create_fma": _fused_multiply_add,
    "create_dot": _dot,
}
