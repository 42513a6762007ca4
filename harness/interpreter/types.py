"""Types and shapes of Triton's language, built once. As shipped, an interpreted kernel rebuilds them most of the time.

They are immutable in a kernel, so equal ones may be shared. Triton's errors stay the same.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as shipped

from packproof.harness.interpreter.patch import replace

Sizes = tuple[int, ...]

core = tl.core
Handle = shipped.TensorHandle
_ELEMENTS = {
    **{torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16},
    **{torch.int64: tl.int64, torch.int32: tl.int32, torch.int16: tl.int16, torch.int8: tl.int8},
    **{torch.uint8: tl.uint8, torch.bool: tl.int1},
}
_PLAIN = frozenset({int, float, bool, str, type(None), core.tensor, core.dtype})


def repair() -> None:
    """Replace the constructors. Call it before the language is patched to numpy, because the patch binds functions."""
    replace(core, "_unwrap_if_constexpr", _plain_values_first)
    replace(core.dtype, "__eq__", _identity_first)
    replace(core.block_type, "__init__", _share_equal_types)
    replace(core.tensor, "__init__", lambda original: _init_tensor)
    replace(Handle, "__init__", lambda original: _init_handle)
    replace(shipped, "_get_np_dtype", _once_per_type)
    replace(shipped, "_patch_attr", lambda original: _bind)
    replace(shipped, "_implicit_cvt", _plain_arguments_first)
    replace(TritonSemantic, "cast", _equal_dtypes_first)
    replace(TritonSemantic, "broadcast_impl_value", _broadcast_at_once)
    replace(TritonSemantic, "expand_dims", lambda original: _expand_dims)


def type_of(dtype: Any, sizes: Sizes) -> Any:
    """The type of a block of a dtype; without sizes, of a scalar."""
    key = (dtype.name, sizes)
    if key not in _types:
        _types[key] = core.block_type(dtype, list(sizes)) if sizes else dtype
    return _types[key]


def made(data: Any, dtype: Any, sizes: Sizes) -> Any:
    """`core.tensor(Handle(data, dtype), type_of(dtype, sizes))`, faster. data: values of the width of the dtype."""
    handle, tensor = _new(Handle), _new(core.tensor)
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    kind, parts = _forms.get((dtype.name, sizes)) or _form(dtype, sizes)
    tensor.handle, tensor.type = handle, kind
    tensor.dtype, tensor.sizes, tensor.shape, tensor.numel = parts
    return tensor


def _form(dtype: Any, sizes: Sizes) -> Any:
    kind = type_of(dtype, sizes)
    _forms[dtype.name, sizes] = form = kind, kind.__dict__.get("_parts") or _remember_parts(kind)
    return form


_forms: dict[Any, Any] = {}
_new = object.__new__


@cache
def joint(left: Sizes, right: Sizes) -> Sizes | None:
    """The sizes of the result of two operands. None if they do not broadcast: Triton raises the error."""
    try:
        return np.broadcast_shapes(left, right)
    except ValueError:
        return None


_types: dict[Any, Any] = {}
_itemsizes: dict[str, int] = {}


def itemsize(dtype: Any) -> int:
    """Bytes of a value in numpy; 8 for a pointer."""
    name = dtype.name
    if name not in _itemsizes:
        _itemsizes[name] = 8 if dtype.is_ptr() else max(1, dtype.primitive_bitwidth // 8)
    return _itemsizes[name]


def pointed(dtype: Any) -> Any:
    """Bytes of a pointer's element type, as np.uint64; None for any other dtype."""
    name = dtype.name
    if name not in _pointed:
        _pointed[name] = np.uint64(itemsize(dtype.element_ty)) if dtype.is_ptr() else None
    return _pointed[name]


_pointed: dict[str, Any] = {}


def _plain_values_first(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value: value if type(value) in _PLAIN else original(value)


def _identity_first(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self is other or original(self, other)


def _share_equal_types(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in shape])
        key = (element_ty.name, getattr(element_ty, "address_space", None), sizes)
        if key not in known:
            original(self, element_ty, shape)
            _remember_parts(self)
            known[key] = dict(self.__dict__)
        self.__dict__.update(known[key])

    return init


def _init_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  (its name there)
    self.handle, self.type = handle, type
    self.dtype, self.sizes, self.shape, self.numel = type.__dict__.get("_parts") or _remember_parts(type)


def _remember_parts(kind: Any) -> tuple[Any, Sizes, Any, Any]:
    sizes = tuple(kind.shape) if kind.is_block() else ()
    shape = core.tuple([core.constexpr(size) for size in sizes])
    kind._parts = (kind.scalar, sizes, shape, core.constexpr(math.prod(sizes)))
    parts: tuple[Any, Sizes, Any, Any] = kind._parts
    return parts


def _init_handle(self: Any, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
    if data.itemsize != (_itemsizes.get(dtype.name) or itemsize(dtype)):
        if data.itemsize > itemsize(dtype):
            raise ValueError(f"values of {8 * data.itemsize} bits exceed {dtype}")
        self.data = data.astype(shipped._get_np_dtype(dtype))  # as shipped, an int64 of 2**31 wraps at 2**32


def _once_per_type(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    def np_dtype(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = original(kind.scalar)
        return known[name]

    return np_dtype


def _plain_arguments_first(original: Callable[..., Any]) -> Callable[..., Any]:
    # a table of our own: Triton's lookup of a pointer type imports all of Gluon
    pointers: dict[torch.dtype, Any] = {dtype: tl.pointer_type(kind) for dtype, kind in _ELEMENTS.items()}

    def convert(argument: Any) -> Any:
        if type(argument) is int and -(2**31) <= argument < 2**31:
            return core.tensor(Handle(np.array([argument], dtype=np.int32), tl.int32), tl.int32)
        if type(argument) is not torch.Tensor:
            return original(argument)
        if argument.dtype not in pointers:
            pointers[argument.dtype] = original(argument).type
        kind = pointers[argument.dtype]
        return core.tensor(Handle(np.array([argument.data_ptr()], dtype=np.uint64), kind), kind)

    return convert


def _bind(obj: Any, name: str, member: Any, builder: Any, *scope: Any) -> None:
    """Bind a function of the language to its implementation, without the check for a compiled kernel at each call."""
    function, semantic = getattr(member, "__wrapped__", member), TritonSemantic(builder)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    setattr(obj, name, call)


def _equal_dtypes_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(self: Any, value: Any, kind: Any, *rest: Any, **named: Any) -> Any:
        return value if value.dtype is kind else original(self, value, kind, *rest, **named)

    return cast


def _broadcast_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast_both(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.sizes == rhs.sizes:
            return lhs, rhs
        sizes = joint(lhs.sizes, rhs.sizes)
        return original(self, lhs, rhs) if sizes is None else (broadcast(lhs, sizes), broadcast(rhs, sizes))

    return broadcast_both


def broadcast(x: Any, sizes: Sizes) -> Any:
    """A tensor as a block of these sizes."""
    if x.sizes == sizes:
        return x
    return made(stretched(x.handle.data, sizes), x.dtype, sizes)


def stretched(data: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """`np.broadcast_to`, which costs several additions."""
    if data.shape == shape:
        return data
    if data.size == 1 and 0 not in shape:
        steps = [0] * len(shape)
    elif data.ndim != len(shape) or not data.flags.c_contiguous or 0 in shape:
        return np.broadcast_to(data, shape)
    else:
        steps = [0 if n == 1 else step for n, step in zip(data.shape, data.strides, strict=True)]
    view = np.ndarray(shape, data.dtype, data, 0, steps)
    view.flags.writeable = False
    return view


def _expand_dims(self: Any, value: Any, axis: int) -> Any:
    sizes = value.sizes
    axis = axis + len(sizes) + 1 if axis < 0 else axis
    sizes = (*sizes[:axis], 1, *sizes[axis:])
    return made(value.handle.data.reshape(sizes), value.dtype, sizes)
