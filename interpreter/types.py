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

from packproof.interpreter.patch import replace

Sizes = tuple[int, ...]

core = tl.core
Handle = shipped.TensorHandle
_ELEMENT_TYPES = {
    **{torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16},
    **{torch.int64: tl.int64, torch.int32: tl.int32, torch.int16: tl.int16, torch.int8: tl.int8},
    **{torch.uint8: tl.uint8, torch.bool: tl.int1},
}
_UNWRAPPED_TYPES = frozenset({int, float, bool, str, type(None), core.tensor, core.dtype})


def repair() -> None:
    """Replace the constructors. Call it before the language is patched to numpy, because the patch binds functions."""
    replace(core, "_unwrap_if_constexpr", _fast_unwrap)
    replace(core.dtype, "__eq__", _fast_equality)
    replace(core.block_type, "__init__", _share_equal_types)
    replace(core.tensor, "__init__", lambda original: _init_tensor)
    replace(Handle, "__init__", lambda original: _init_handle)
    replace(shipped, "_get_np_dtype", _cached_np_dtype)
    replace(shipped, "_patch_attr", lambda original: _bind)
    replace(shipped, "_implicit_cvt", _fast_argument_conversion)
    replace(TritonSemantic, "cast", _fast_cast)
    replace(TritonSemantic, "broadcast_impl_value", _fast_broadcast)
    replace(TritonSemantic, "expand_dims", lambda original: _expand_dims)


def type_of(dtype: Any, sizes: Sizes) -> Any:
    """The type of a block of a dtype; without sizes, of a scalar."""
    key = (dtype.name, sizes)
    if key not in _types:
        _types[key] = core.block_type(dtype, list(sizes)) if sizes else dtype
    return _types[key]


def make_tensor(data: Any, dtype: Any, sizes: Sizes) -> Any:
    """`core.tensor(Handle(data, dtype), type_of(dtype, sizes))`, faster. data: values of the width of the dtype."""
    handle, tensor = _allocate(Handle), _allocate(core.tensor)
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    kind, parts = _parts_cache.get((dtype.name, sizes)) or _type_and_parts(dtype, sizes)
    tensor.handle, tensor.type = handle, kind
    tensor.dtype, tensor.sizes, tensor.shape, tensor.numel = parts
    return tensor


def _type_and_parts(dtype: Any, sizes: Sizes) -> Any:
    kind = type_of(dtype, sizes)
    _parts_cache[dtype.name, sizes] = entry = kind, kind.__dict__.get("_parts") or _remember_parts(kind)
    return entry


_parts_cache: dict[Any, Any] = {}
_allocate = object.__new__


@cache
def broadcast_sizes(lhs: Sizes, rhs: Sizes) -> Sizes | None:
    """The sizes of the result of two operands. None if they do not broadcast: Triton raises the error."""
    try:
        return np.broadcast_shapes(lhs, rhs)
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


def pointee_bytes(dtype: Any) -> Any:
    """Bytes of a pointer's element type, as np.uint64; None for any other dtype."""
    name = dtype.name
    if name not in _pointee_bytes_cache:
        _pointee_bytes_cache[name] = np.uint64(itemsize(dtype.element_ty)) if dtype.is_ptr() else None
    return _pointee_bytes_cache[name]


_pointee_bytes_cache: dict[str, Any] = {}


def _fast_unwrap(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value: value if type(value) in _UNWRAPPED_TYPES else original(value)


def _fast_equality(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda lhs, rhs: lhs is rhs or original(lhs, rhs)


def _share_equal_types(original: Callable[..., Any]) -> Callable[..., Any]:
    attributes: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if type(size) is core.constexpr else size for size in shape])
        key = (element_ty.name, getattr(element_ty, "address_space", None), sizes)
        if key not in attributes:
            original(self, element_ty, shape)
            _remember_parts(self)
            attributes[key] = dict(self.__dict__)
        self.__dict__.update(attributes[key])

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


def _cached_np_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    dtypes: dict[str, Any] = {}

    def np_dtype(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in dtypes:
            dtypes[name] = original(kind.scalar)
        return dtypes[name]

    return np_dtype


def _fast_argument_conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    # a table of our own: Triton's lookup of a pointer type imports all of Gluon
    pointers: dict[torch.dtype, Any] = {dtype: tl.pointer_type(kind) for dtype, kind in _ELEMENT_TYPES.items()}

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


def _fast_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(self: Any, value: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        return value if value.dtype is kind else original(self, value, kind, *args, **kwargs)

    return cast


def _fast_broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast_both(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.sizes == rhs.sizes:
            return lhs, rhs
        sizes = broadcast_sizes(lhs.sizes, rhs.sizes)
        return original(self, lhs, rhs) if sizes is None else (broadcast(lhs, sizes), broadcast(rhs, sizes))

    return broadcast_both


def broadcast(x: Any, sizes: Sizes) -> Any:
    """A tensor as a block of these sizes."""
    if x.sizes == sizes:
        return x
    return make_tensor(broadcast_array(x.handle.data, sizes), x.dtype, sizes)


def broadcast_array(data: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
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
    return make_tensor(value.handle.data.reshape(sizes), value.dtype, sizes)
