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

from packproof.harness.interpreter.floats import bfloat16_to_float32, float32_to_bfloat16
from packproof.harness.interpreter.patch import replace
from packproof.harness.interpreter.types import core, joint, made, pointed

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
    replace(core.tensor, "__add__", _offsets_of_pointers_first)
    replace(core.tensor, "__neg__", _plain_negations_first)
    replace(core.tensor, "__truediv__", _operator(np.divide, _FLOATS))
    replace(core.tensor, "__floordiv__", _operator(_divide_integers, INTEGERS))
    replace(core.tensor, "__mod__", _operator(np.fmod, INTEGERS))
    for name, operation in _LOGIC.items():
        replace(core.tensor, f"__{name}__", _operator(operation, {"int1": np.bool_, **INTEGERS}))
    for name, operation in _COMPARISONS.items():
        replace(core.tensor, f"__{name}__", _operator(operation, _NUMBERS, result=tl.int1))
    replace(core.tensor, "__rshift__", _plain_shifts_first)
    replace(core.tensor, "to", _plain_conversions_first)
    for language in (tl, core):
        replace(language, "dot", _plain_products_first)
        replace(language, "minimum", _operator(np.minimum, INTEGERS))
        replace(language, "maximum", _operator(np.maximum, INTEGERS))
        replace(language, "where", _plain_selections_first)


def _operator(operation: Operation, kinds: Mapping[str, Any], *, result: Any = None, reflected: bool = False) -> Make:
    """A patch: the operation on two tensors of one dtype among `kinds`, or on such a tensor and a number of this
    dtype."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, other: Any, *rest: Any, **named: Any) -> Any:
            if type(self) is not core.tensor or rest or named:
                return original(self, other, *rest, **named)
            kind, mine, dtype, sizes = self.dtype.name, self.handle.data, self.dtype, self.sizes
            if type(other) is not core.tensor:
                others = _constant(other, kind) if kind in kinds else None
            else:  # nearly always alike
                others = other.handle.data if kind in kinds and other.dtype.name == kind else None
                others = others if other.sizes == sizes else None
            if others is None:
                found = values(self, other, kinds)
                if found is None:
                    return original(self, other)
                mine, others, dtype, sizes = found
            data = operation(others, mine) if reflected else operation(mine, others)
            return made(data, result or dtype, sizes)

        return apply

    return make


def values(self: Any, other: Any, kinds: Mapping[str, Any]) -> Any:
    """The values of both operands, their dtype and the sizes of the result. None: take Triton's own path."""
    kind = self.dtype.name
    if kind not in kinds:
        return None
    if type(other) is not core.tensor:
        number = _constant(other, kind)
        return None if number is None else (self.handle.data, number, self.dtype, self.sizes)
    sizes = self.sizes if self.sizes == other.sizes else joint(self.sizes, other.sizes)
    if sizes is None:
        return None
    if other.dtype.name == kind:
        return self.handle.data, other.handle.data, self.dtype, sizes
    if kind in INTEGERS and other.dtype.name in INTEGERS:
        return self.handle.data.astype(np.int64), other.handle.data.astype(np.int64), tl.int64, sizes
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


def _offsets_of_pointers_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def add(self: Any, other: Any) -> Any:
        n_bytes = pointed(self.dtype)
        if n_bytes is None:
            return original(self, other)
        if type(other) is core.tensor and other.dtype.name in INTEGERS:
            sizes, offset = joint(self.sizes, other.sizes), other.handle.data.astype(np.uint64)
        elif type(other) is int:
            sizes, offset = self.sizes, np.uint64(other % 2**64)
        else:
            return original(self, other)
        if sizes is None:
            return original(self, other)
        data = self.handle.data + offset * n_bytes
        return made(data, self.dtype, sizes)

    return add


def _plain_conversions_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: Any, dtype: Any, *rest: Any, **named: Any) -> Any:
        dtype = dtype.value if type(dtype) is core.constexpr else dtype
        if type(dtype) is core.dtype and not rest and len(named) == 1 and named.get("bitcast") is True:
            same_bits = _as_bits(self, dtype)
            return original(self, dtype, **named) if same_bits is None else same_bits
        if type(dtype) is not core.dtype or rest or named:
            return original(self, dtype, *rest, **named)
        if self.dtype.name == dtype.name:
            return self
        convert = _CONVERSIONS.get((self.dtype.name, dtype.name))
        if convert is None:
            return original(self, dtype)
        return made(convert(self.handle.data), dtype, self.sizes)

    return to


def _as_bits(t: Any, dtype: Any) -> Any:
    """The same bits read as another dtype. None: take Triton's own path."""
    if t.dtype.name == dtype.name:
        return t
    if not any(t.dtype.name in alike and dtype.name in alike for alike in _BITS):
        return None
    return made(t.handle.data.view(shipped._get_np_dtype(dtype)), dtype, t.sizes)


def _plain_negations_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def negate(self: Any) -> Any:
        zero = _number(0, self.dtype.name)
        return original(self) if zero is None else made(zero - self.handle.data, self.dtype, self.sizes)

    return negate


def _plain_shifts_first(original: Callable[..., Any]) -> Callable[..., Any]:
    shifted = _operator(np.right_shift, INTEGERS)(original)
    # Triton warns of a constant that is too large
    return lambda self, other: original(self, other) if type(other) is core.constexpr else shifted(self, other)


def _plain_products_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot(input: Any, other: Any, acc: Any = None, *rest: Any, **named: Any) -> Any:  # noqa: A002  (its name there)
        found = None if rest or named else _factors(input, other, acc)
        if found is None:
            return original(input, other, acc, *rest, **named)
        left, right, total, sizes = found
        return made(np.matmul(left, right) + total, tl.float32, sizes)

    return dot


def _factors(left: Any, right: Any, total: Any) -> Any:
    """Two blocks of 16-bit floats widened to fp32, the fp32 accumulator, and the sizes of the result. None: take
    Triton's own path."""
    if not (type(left) is type(right) is core.tensor and left.dtype.name == right.dtype.name in _WIDE):
        return None
    if not len(left.sizes) == len(right.sizes) == 2 or left.sizes[1] != right.sizes[0]:
        return None
    widen, sizes = _WIDE[left.dtype.name], (left.sizes[0], right.sizes[1])
    if total is None:
        return widen(left.handle.data), widen(right.handle.data), np.float32(0), sizes
    if type(total) is not core.tensor or total.dtype.name != "fp32" or total.sizes != sizes:
        return None
    return widen(left.handle.data), widen(right.handle.data), total.handle.data, sizes


_WIDE: Mapping[str, Operation] = {"bf16": bfloat16_to_float32, "fp16": lambda data: data.astype(np.float32)}


def _plain_selections_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def where(condition: Any, x: Any, y: Any) -> Any:
        first, second = (x, y) if type(x) is core.tensor else (y, x)
        found = values(first, second, _NUMBERS) if type(first) is core.tensor else None
        if found is None or type(condition) is not core.tensor or condition.dtype.name != "int1":
            return original(condition, x, y)
        data, others, dtype, sizes = found
        sizes = joint(sizes, condition.sizes)
        if sizes is None:
            return original(condition, x, y)
        chosen = np.where(condition.handle.data, *((data, others) if first is x else (others, data)))
        return made(chosen, dtype, sizes)

    return where
