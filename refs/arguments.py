"""Argument checks of ops: shapes, dtypes, devices and offsets, the same for references and kernels."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from operator import index
from typing import Any

import torch
from torch import Tensor

from packproof.refs.axes import KEYS, Axes, Axis, parse, read_axis, shape
from packproof.refs.errors import ArgumentError, LayoutError, contradiction
from packproof.refs.signatures import Signature
from packproof.refs.wording import counted, kind

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)
OFFSETS = (torch.int32, torch.int64)

_COUNTED = {
    "t": "token",
    "u": "key",
    "s": "sequence",
    "d": "channel",
    "w": "tap",
    "n": "state",
    "g": "group",
    "h": "head",
    "hq": "query head",
    "hk": "key head",
    "hv": "value head",
    "p": "channel per head",
    "k": "channel per head",
    "v": "value channel per head",
    "m": "position",
    "r": "rotated pair",
    "c": "slot",
}
_TOKENS = Axis("t", "t", 0)
_SHOWN_OFFSETS = 8
_SHOWN_TEXT = 40


def bind(
    signature: Signature,
    cu_seqlens: Tensor,
    *,
    values: bool,
    cu_seqlens_k: Tensor | None = None,
    **tensors: Tensor | None,
) -> dict[str, int]:
    """Check every tensor of a call and return the size of each axis, such as `{"t": 36, "d": 64, "s": 2}`.

    cu_seqlens: int32 or int64 (s + 1,), on the device of the inputs.
    values: also read the offsets on the host and check them; on a GPU this waits for the device.
    cu_seqlens_k: like cu_seqlens, for the axis u. If left out, u is t.
    tensors: the inputs by name, None for an absent one.

    Raises ArgumentError with the name, actual and expected value of the argument; LayoutError for the offsets.
    """
    given = _given(signature, tensors)
    leader = next(iter(given))
    offsets = {"cu_seqlens": cu_seqlens, **({} if cu_seqlens_k is None else {"cu_seqlens_k": cu_seqlens_k})}
    for name, packing in offsets.items():
        check_offsets_form(signature.op, packing, name)
    _check_devices(signature, given, offsets)
    _check_dtypes(signature, given)
    sizes = _bind_axes(signature, given, offsets)
    if values:
        check_offsets(signature.op, cu_seqlens, sizes["t"], f"{leader} has", _listed({leader: given[leader]}))
    if values and cu_seqlens_k is not None:
        packed = next(n for n in given if signature.inputs[n].split()[0] == KEYS)
        listed = _listed({packed: given[packed]})
        check_offsets(signature.op, cu_seqlens_k, sizes[KEYS], f"{packed} has", listed, name="cu_seqlens_k")
    for parts, whole in signature.groups.items():
        if parts in sizes and (sizes[parts] < 1 or sizes[whole] % sizes[parts]):
            shared = (
                f"{counted_along(sizes[whole], whole)} cannot be shared evenly by {counted_along(sizes[parts], parts)}"
            )
            raise ArgumentError(f"{signature.op}: {shared}")
    return sizes


def check_options(signature: Signature, **given: Any) -> None:
    """Raise ArgumentError unless each option has one of its values."""
    for name, value in given.items():
        check_option(signature.op, name, value, signature.options[name])


def check_step(function: str, specs: Mapping[str, str], **tensors: Tensor | None) -> None:
    """Raise ArgumentError unless the tensors of a step function, one token without a pack, fit their axes.

    specs: axes such as "h p n", by name of the tensor, as in a signature.
    tensors: by name; floats, on one device.
    """
    sizes: dict[str, int] = {}
    given = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    leader = next(iter(given), "")
    for name, spec in specs.items():
        tensor, parsed = tensors[name], parse(spec)
        if tensor is None and parsed.optional:
            continue
        expected = " or ".join(f"({' '.join(axes)})" for axes in parsed.alternatives)
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{function}: {name} is {kind(tensor)} but a tensor of axes {expected} was expected")
        check_floats(function, name, tensor)
        if tensor.device != given[leader].device:
            where = f"{name} is on {tensor.device} but {leader} is on {given[leader].device}"
            raise ArgumentError(f"{function}: {where}\n    All tensors of a call lie on one device.")
        fits = (_step_sizes(axes, tensor.shape, sizes) for axes in parsed.alternatives)
        fit = next((found for found in fits if found is not None), None)
        if fit is None:
            shapes = "".join(f"\n    {other:<16} {_form(one)}" for other, one in given.items())
            raise ArgumentError(f"{function}: {name} is {tuple(tensor.shape)} but {expected} was expected{shapes}")
        sizes = fit


def _step_sizes(axes: Axes, given: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Add the axis sizes of one more tensor; None if it does not fit the known sizes."""
    if len(axes) != len(given):
        return None
    found = dict(sizes)
    for axis, size in zip(map(read_axis, axes), given, strict=True):
        known = int(axis.base) if axis.base.isdigit() else found.setdefault(axis.base, size - axis.shift)
        if size != known + axis.shift:
            return None
    return found


def check_floats(function: str, name: str, tensor: Any) -> None:
    """Raise ArgumentError unless the value is a tensor of a supported float dtype, or of complex numbers."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{function}: {name} is {kind(tensor)} but a tensor was expected")
    if tensor.dtype not in FLOATS and not tensor.is_complex():  # complex: for differentiation by complex steps
        expected = " or ".join(map(_short, FLOATS))
        raise ArgumentError(f"{function}: {name} is {_short(tensor.dtype)} but {expected} was expected")


def whole_number(function: str, name: str, value: Any, least: int = 0, error: type[ArgumentError] = LayoutError) -> int:
    """The value as an int. Raises `error` unless it is a whole number, not a bool, of at least `minimum`."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise error(f"{function}: {name} is {_shown(value)}; a whole number was expected")
    if number < least:
        raise error(f"{function}: {name} is {number}; {least} or more was expected")
    return number


def finite_scale(op: str, scale: Any, k: int, name: str = "scale") -> float:
    """The scale as a float, k ** -0.5 for None. Raises ArgumentError unless it is a finite number or None."""
    if scale is None:
        return float(max(k, 1) ** -0.5)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not isfinite(scale):
        raise ArgumentError(f"{op}: {name} is {scale!r} but a finite number or None was expected")
    return float(scale)


def _dtype(signature: Signature, name: str, leader: torch.dtype) -> torch.dtype:
    """The dtype of an input or output, given the dtype of the leader."""
    return _wide(leader) if name in signature.fixed else leader


def empty_output(signature: Signature, name: str, leader: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """An uninitialized tensor with the shape, dtype and device of an output."""
    (axes,) = parse(signature.outputs[name]).alternatives
    return leader.new_empty(shape(axes, sizes), dtype=_dtype(signature, name, leader.dtype))


def empty_gradients(signature: Signature, leader: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
    """An uninitialized tensor like the gradient of each input, in order; an empty one for an absent input."""
    return tuple(
        leader.new_empty(0, dtype=_dtype(signature, name, leader.dtype))
        if x is None
        else leader.new_empty(x.shape, dtype=x.dtype)
        for name, x in zip(signature.inputs, (leader, *others), strict=True)
    )


def _given(signature: Signature, tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """The tensors present, in the order of the signature's inputs."""
    given = {}
    for name, forms in signature.forms.items():
        tensor = tensors.pop(name, None)
        if isinstance(tensor, Tensor):
            given[name] = tensor
        elif tensor is not None or not forms.optional:
            expected = f"a tensor of axes ({signature.inputs[name].rstrip('?')}) was expected"
            raise ArgumentError(f"{signature.op}: {name} is {kind(tensor)} but {expected}")
    if tensors:
        raise TypeError(f"{signature.op} has no input {' or '.join(tensors)}; it has {', '.join(signature.inputs)}")
    return given


def _check_devices(signature: Signature, given: Mapping[str, Tensor], offsets: Mapping[str, Tensor]) -> None:
    leader, first = next(iter(given.items()))
    device = first.device
    for name, tensor in {**given, **offsets}.items():
        if tensor.device != device:
            kind = LayoutError if name in offsets else ArgumentError
            raise kind(
                f"{signature.op}: {name} is on {tensor.device} but {leader} is on {device}\n"
                f"    All tensors of a call lie on one device: {name}.to({leader}.device)"
            )


def _check_dtypes(signature: Signature, given: Mapping[str, Tensor]) -> None:
    leader, first = next(iter(given.items()))
    own = first.dtype
    if own not in FLOATS:
        expected = " or ".join(map(_short, FLOATS))
        raise ArgumentError(f"{signature.op}: {leader} is {_short(own)} but {expected} was expected")
    for name, tensor in given.items():
        allowed = _allowed(signature, name, own)
        if tensor.dtype not in allowed:
            beside = "" if name in signature.integers else f" with {_short(own)} {leader}"
            expected = f"{' or '.join(map(_short, allowed))} was expected{beside}"
            listed = _listed(given).rstrip("\n")
            raise ArgumentError(f"{signature.op}: {name} is {_short(tensor.dtype)} but {expected}\n{listed}")


def _allowed(signature: Signature, name: str, leader: torch.dtype) -> tuple[torch.dtype, ...]:
    """The allowed dtypes of an input, given the dtype of the leader, the usual one first."""
    if name in signature.integers:
        return OFFSETS
    usual = _dtype(signature, name, leader)
    either = name in signature.tables or (name in signature.float32 and leader in HALVES)
    others = (torch.float32,) if either else narrow_dtypes(leader) if name in signature.narrow else ()
    return tuple(dict.fromkeys((usual, *others)))


def narrow_dtypes(leader: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtypes allowed for `narrow` inputs beside fp32, given the dtype of the leader."""
    return (leader,) if leader in HALVES else HALVES if leader == torch.float32 else ()


def widened(signature: Signature, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors, with `narrow` inputs cast to their fixed dtype. Their gradients are rounded back, once."""
    wide = _wide(next(iter(tensors.values())).dtype)
    narrow = {name: x.to(wide) for name, x in tensors.items() if name in signature.narrow and x is not None}
    return {**tensors, **narrow}


def _bind_axes(signature: Signature, given: Mapping[str, Tensor], offsets: Mapping[str, Tensor]) -> dict[str, int]:
    sizes = {"s": offsets["cu_seqlens"].shape[0] - 1}
    holders = {"s": "cu_seqlens"}

    def complain(text: str) -> ArgumentError:
        return contradiction(f"{signature.op}: {text}\n{_listed({**given, **offsets})}".rstrip("\n"))

    if "cu_seqlens_k" in offsets and (packed := offsets["cu_seqlens_k"].shape[0] - 1) != sizes["s"]:
        raise complain(f"cu_seqlens_k has {counted_along(packed, 's')} but cu_seqlens has {sizes['s']}")

    for name, tensor in given.items():
        by_ndim = signature.forms[name].by_ndim
        axes = by_ndim.get(tensor.ndim)
        if axes is None:
            expected = " or ".join(f"({' '.join(axis.name for axis in axes)})" for axes in by_ndim.values())
            raise complain(f"{name} has {counted(tensor.ndim, 'axis')} but {expected} was expected")
        for own, size in zip(axes, tensor.shape, strict=True):
            axis = _TOKENS if own.base == KEYS and "cu_seqlens_k" not in offsets else own
            wanted = sizes.get(axis.base)
            if wanted is None:
                sizes[axis.base], holders[axis.base] = size - axis.shift, name
            elif size != wanted + axis.shift:
                raise complain(_mismatch(name, axis, size, wanted, holders[axis.base]))
            sizes[own.base] = sizes[axis.base]
    for _, base, shift in signature.shifted:
        if sizes.get(base, -shift) < -shift:
            raise complain(f"{holders[base]} has {counted_along(sizes[base], base)} but at least {-shift} was expected")
    return sizes


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of fixed tensors beside tokens of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_option(op: str, name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise ArgumentError unless `value` is one of `allowed`."""
    if not any(type(value) is type(one) and value == one for one in allowed):  # 1 == True, but 1 is not a flag
        raise ArgumentError(f"{op}: {name} is {value!r} but {' or '.join(map(repr, allowed))} was expected")


def check_offsets_form(op: str, cu_seqlens: Tensor, name: str = "cu_seqlens") -> None:
    """Raise LayoutError unless `cu_seqlens` is an int32 or int64 tensor of shape (s + 1,). Reads no value.

    name: of the argument, for the message.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise LayoutError(
            f"{op}: {name} is {kind(cu_seqlens)} but an int32 or int64 tensor (s + 1,) was expected\n"
            "    PackLayout.from_lengths(lengths).cu_seqlens() makes one."
        )
    if cu_seqlens.dtype not in OFFSETS:
        raise LayoutError(
            f"{op}: {name} is {_short(cu_seqlens.dtype)} but int32 or int64 was expected\n"
            f"    Offsets count tokens: {name}.to(torch.int32)"
        )
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise LayoutError(
            f"{op}: {name} has shape {tuple(cu_seqlens.shape)} but (s + 1,) was expected\n"
            "    One offset per sequence and the end of the last one; [0] for no sequences."
        )


def check_offsets(
    op: str, cu_seqlens: Tensor, n_tokens: int, holder: str = "the pack has", lines: str = "", name: str = "cu_seqlens"
) -> None:
    """Raise LayoutError unless the offsets start at 0, never decrease and end at or before `n_tokens`.

    Reads the offsets on the host. Rows past the last offset are slack.

    holder: "x has", the owner of the tokens, for the message.
    lines: further lines of the message.
    name: of the argument, for the message.
    """
    offsets = host_offsets(op, cu_seqlens, name)
    falls = next((i for i in range(1, len(offsets)) if offsets[i] < offsets[i - 1]), None)
    if offsets[0] != 0:
        entry, what = 0, f"starts at {offsets[0]} but 0 was expected"
    elif falls is not None:
        entry, what = falls, f"decreases from {offsets[falls - 1]} to {offsets[falls]} at entry {falls}"
    elif offsets[-1] > n_tokens:
        entry, what = len(offsets) - 1, f"ends at {offsets[-1]} but {holder} {counted(n_tokens, 'token')}"
    else:
        return
    way_out = "Offsets count tokens from 0, never decrease and may not pass the last one."
    shown = f"    {name:<16} {_form(cu_seqlens)} {_excerpt(offsets, entry)}\n"
    raise LayoutError(f"{op}: {name} {what}\n{lines}{shown}    {way_out}")


def host_offsets(op: str, cu_seqlens: Tensor, name: str = "cu_seqlens") -> list[int]:
    """The values of the offsets, read on the host. Raises LayoutError for a meta tensor: it has no values."""
    if cu_seqlens.is_meta:
        raise LayoutError(f"{op}: {name} is on meta, where it has no values, but they are read here")
    values: list[int] = cu_seqlens.tolist()
    return values


def moved(owner: str, tensor: Tensor, device: Any) -> Tensor:
    """Move a tensor to a device; None leaves it. Raises LayoutError for a device not available here."""
    if device is None:
        return tensor
    try:
        return tensor.to(torch.device(device))
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"{owner}: device is {device!r}, which cannot be used here: {reason}") from None


def _mismatch(name: str, axis: Axis, size: int, wanted: int, holder: str) -> str:
    if axis.shift:
        return (
            f"{name} has {size} along axis {axis.name} but {holder} has {axis.base} = {wanted}; "
            f"{wanted + axis.shift} was expected"
        )
    return f"{name} has {counted_along(size, axis.base)} but {holder} has {wanted}"


def counted_along(size: int, axis: str) -> str:
    return f"{counted(size, _COUNTED.get(axis, 'entry'))} (axis {axis})"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_TEXT else kind(value)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _form(tensor: Tensor) -> str:
    return f"{_short(tensor.dtype)} {tuple(tensor.shape)}"


def _listed(tensors: Mapping[str, Tensor]) -> str:
    return "".join(f"    {name:<16} {_form(tensor)}\n" for name, tensor in tensors.items())


def _excerpt(offsets: list[int], entry: int) -> str:
    first = min(max(0, entry - _SHOWN_OFFSETS // 2), max(0, len(offsets) - _SHOWN_OFFSETS))
    shown = ", ".join(map(str, offsets[first : first + _SHOWN_OFFSETS]))
    return f"[{'..., ' if first else ''}{shown}{', ...' if first + _SHOWN_OFFSETS < len(offsets) else ''}]"
