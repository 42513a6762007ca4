"""Operators of Triton's tensors, sent straight to numpy where neither operand needs a conversion.

numpy broadcasts as Triton does and computes the same bits. All other operands, and all operands that Triton refuses,
take Triton's own path.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as shipped

from packproof.interpreter.floats import bfloat16_to_float32, float32_to_bfloat16
from packproof.interpreter.patch import replace
from packproof.interpreter.types import broadcast_sizes, core, make_tensor, pointee_bytes

Operation = Callable[..., Any]
Make = Callable[[Callable[..., Any]], Callable[..., Any]]

INTEGERS: Mapping[str, Any] = {"int32": np.int32, "int64": np.int64}
_FLOATS: Mapping[str, Any] = {"fp32": np.float32, "fp64": np.float64}
_NUMBERS = {**INTEGERS, **_FLOATS}
_ARITHMETIC: Mapping[str, Operation] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_LOGIC: Mapping[str, Operation] = {"and": np.bitwise_and, "or": np.bitwise_or}
_COMPARISONS: Mapping[str, Operation] = {
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal},
    **{"eq": np.equal, "ne": np.not_equal},
}
_CONVERSIONS: Mapping[tuple[str, str], Operation] = {
    ("fp32", "bf16"): float32_to_bfloat16,
    ("bf16", "fp32"): bfloat16_to_float32,
    ("fp64", "fp32"): lambda data: data.astype(np.float32),
    ("fp32", "fp64"): lambda data: data.astype(np.float64),
    ("int32", "int64"): lambda data: data.astype(np.int64),
    ("int1", "int32"): lambda data: data.astype(np.int32),
    ("int32", "int16"): lambda data: data.astype(np.int16),
}
# dtypes of equal width: a bitcast between them keeps the bits
_BITS = [{"int64", "fp64"}, {"int32", "uint32", "fp32"}, {"int16", "uint16", "fp16", "bf16"}]


def _divide_integers(x: Any, y: Any) -> Any:
    """Division rounded towards zero, as in C."""
    return (x - np.fmod(x, y)) // y


def repair() -> None:
    """Replace the operators. Call it after the language has become numpy."""
    for name, operation in _ARITHMETIC.items():
        replace(core.tensor, f"__{name}__", _operator(operation, _NUMBERS))
        replace(core.tensor, f"__r{name}__", _operator(operation, _NUMBERS, reflected=True))
    replace(core.tensor, "__add__", _fast_pointer_add)
    replace(core.tensor, "__neg__", _fast_negation)
    replace(core.tensor, "__truediv__", _operator(np.divide, _FLOATS))
    replace(core.tensor, "__floordiv__", _operator(_divide_integers, INTEGERS))
    replace(core.tensor, "__mod__", _operator(np.fmod, INTEGERS))
    for name, operation in _LOGIC.items():
        replace(core.tensor, f"__{name}__", _operator(operation, {"int1": np.bool_, **INTEGERS}))
    for name, operation in _COMPARISONS.items():
        replace(core.tensor, f"__{name}__", _operator(operation, _NUMBERS, result=tl.int1))
    replace(core.tensor, "__rshift__", _fast_shift)
    replace(core.tensor, "to", _fast_conversion)
    for language in (tl, core):
        replace(language, "dot", _fast_dot)
        replace(language, "minimum", _operator(np.minimum, INTEGERS))
        replace(language, "maximum", _operator(np.maximum, INTEGERS))
        replace(language, "where", _fast_where)


def _operator(operation: Operation, kinds: Mapping[str, Any], *, result: Any = None, reflected: bool = False) -> Make:
    """A patch: the operation on two tensors of one dtype among `kinds`, or on such a tensor and a number of this
    dtype."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
            if type(lhs) is not core.tensor or args or kwargs:
                return original(lhs, rhs, *args, **kwargs)
            kind, lhs_data, dtype, sizes = lhs.dtype.name, lhs.handle.data, lhs.dtype, lhs.sizes
            if type(rhs) is not core.tensor:
                rhs_data = _constant(rhs, kind) if kind in kinds else None
            else:  # nearly always alike
                rhs_data = rhs.handle.data if kind in kinds and rhs.dtype.name == kind else None
                rhs_data = rhs_data if rhs.sizes == sizes else None
            if rhs_data is None:
                operands = operand_values(lhs, rhs, kinds)
                if operands is None:
                    return original(lhs, rhs)
                lhs_data, rhs_data, dtype, sizes = operands
            data = operation(rhs_data, lhs_data) if reflected else operation(lhs_data, rhs_data)
            return make_tensor(data, result or dtype, sizes)

        return apply

    return make


def operand_values(lhs: Any, rhs: Any, kinds: Mapping[str, Any]) -> Any:
    """The values of both operands, their dtype and the sizes of the result. None: take Triton's own path."""
    kind = lhs.dtype.name
    if kind not in kinds:
        return None
    if type(rhs) is not core.tensor:
        number = _constant(rhs, kind)
        return None if number is None else (lhs.handle.data, number, lhs.dtype, lhs.sizes)
    sizes = lhs.sizes if lhs.sizes == rhs.sizes else broadcast_sizes(lhs.sizes, rhs.sizes)
    if sizes is None:
        return None
    if rhs.dtype.name == kind:
        return lhs.handle.data, rhs.handle.data, lhs.dtype, sizes
    if kind in INTEGERS and rhs.dtype.name in INTEGERS:
        return lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64), tl.int64, sizes
    return None


def _constant(value: Any, kind: str) -> Any:
    """A number in the dtype of the other operand. None if Triton would choose another dtype."""
    value = value.value if type(value) is core.constexpr else value
    return _number(value, kind) if type(value) in (int, float) else None


@lru_cache(maxsize=4096, typed=True)
def _number(value: float, kind: str) -> Any:
    if type(value) is int and -(2**31) <= value < 2**31:
        return _NUMBERS[kind](value) if kind in _NUMBERS else None
    if type(value) is float and kind in _FLOATS and _is_float32(value):
        return _FLOATS[kind](value or 0.0)  # Triton's constant -0.0 is 0.0
    return None


def _is_float32(value: float) -> bool:
    return value == 0 or not math.isfinite(value) or 2**-126 <= abs(value) <= (2 - 2**-23) * 2**127


def _fast_pointer_add(original: Callable[..., Any]) -> Callable[..., Any]:
    def add(lhs: Any, rhs: Any) -> Any:
        n_bytes = pointee_bytes(lhs.dtype)
        if n_bytes is None:
            return original(lhs, rhs)
        if type(rhs) is core.tensor and rhs.dtype.name in INTEGERS:
            sizes, offset = broadcast_sizes(lhs.sizes, rhs.sizes), rhs.handle.data.astype(np.uint64)
        elif type(rhs) is int:
            sizes, offset = lhs.sizes, np.uint64(rhs % 2**64)
        else:
            return original(lhs, rhs)
        if sizes is None:
            return original(lhs, rhs)
        data = lhs.handle.data + offset * n_bytes
        return make_tensor(data, lhs.dtype, sizes)

    return add


def _fast_conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = dtype.value if type(dtype) is core.constexpr else dtype
        if type(dtype) is core.dtype and not args and len(kwargs) == 1 and kwargs.get("bitcast") is True:
            same_bits = _bitcast(self, dtype)
            return original(self, dtype, **kwargs) if same_bits is None else same_bits
        if type(dtype) is not core.dtype or args or kwargs:
            return original(self, dtype, *args, **kwargs)
        if self.dtype.name == dtype.name:
            return self
        convert = _CONVERSIONS.get((self.dtype.name, dtype.name))
        if convert is None:
            return original(self, dtype)
        return make_tensor(convert(self.handle.data), dtype, self.sizes)

    return to


def _bitcast(t: Any, dtype: Any) -> Any:
    """The same bits read as another dtype. None: take Triton's own path."""
    if t.dtype.name == dtype.name:
        return t
    if not any(t.dtype.name in same_width and dtype.name in same_width for same_width in _BITS):
        return None
    return make_tensor(t.handle.data.view(shipped._get_np_dtype(dtype)), dtype, t.sizes)


def _fast_negation(original: Callable[..., Any]) -> Callable[..., Any]:
    def negate(self: Any) -> Any:
        zero = _number(0, self.dtype.name)
        return original(self) if zero is None else make_tensor(zero - self.handle.data, self.dtype, self.sizes)

    return negate


def _fast_shift(original: Callable[..., Any]) -> Callable[..., Any]:
    fast_shift = _operator(np.right_shift, INTEGERS)(original)
    # Triton warns of a constant that is too large
    return lambda lhs, rhs: original(lhs, rhs) if type(rhs) is core.constexpr else fast_shift(lhs, rhs)


def _fast_dot(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot(input: Any, other: Any, acc: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: A002  (its name there)
        operands = None if args or kwargs else _dot_operands(input, other, acc)
        if operands is None:
            return original(input, other, acc, *args, **kwargs)
        lhs_data, rhs_data, acc_data, sizes = operands
        return make_tensor(np.matmul(lhs_data, rhs_data) + acc_data, tl.float32, sizes)

    return dot


def _dot_operands(lhs: Any, rhs: Any, acc: Any) -> Any:
    """Two blocks of 16-bit floats widened to fp32, the fp32 accumulator, and the sizes of the result. None: take
    Triton's own path."""
    if not (type(lhs) is type(rhs) is core.tensor and lhs.dtype.name == rhs.dtype.name in _WIDENING):
        return None
    if not len(lhs.sizes) == len(rhs.sizes) == 2 or lhs.sizes[1] != rhs.sizes[0]:
        return None
    widen, sizes = _WIDENING[lhs.dtype.name], (lhs.sizes[0], rhs.sizes[1])
    if acc is None:
        return widen(lhs.handle.data), widen(rhs.handle.data), np.float32(0), sizes
    if type(acc) is not core.tensor or acc.dtype.name != "fp32" or acc.sizes != sizes:
        return None
    return widen(lhs.handle.data), widen(rhs.handle.data), acc.handle.data, sizes


_WIDENING: Mapping[str, Operation] = {"bf16": bfloat16_to_float32, "fp16": lambda data: data.astype(np.float32)}


def _fast_where(original: Callable[..., Any]) -> Callable[..., Any]:
    def select(condition: Any, x: Any, y: Any) -> Any:
        tensor_operand, other_operand = (x, y) if type(x) is core.tensor else (y, x)
        operands = (
            operand_values(tensor_operand, other_operand, _NUMBERS) if type(tensor_operand) is core.tensor else None
        )
        if operands is None or type(condition) is not core.tensor or condition.dtype.name != "int1":
            return original(condition, x, y)
        lhs_data, rhs_data, dtype, sizes = operands
        sizes = broadcast_sizes(sizes, condition.sizes)
        if sizes is None:
            return original(condition, x, y)
        selection = np.where(
            condition.handle.data, *((lhs_data, rhs_data) if tensor_operand is x else (rhs_data, lhs_data))
        )
        return make_tensor(selection, dtype, sizes)

    return select
