"""What a call of an op must look like: shapes, dtypes, devices and offsets, the same for references and kernels."""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.refs.errors import ArgumentError, LayoutError

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OFFSETS = (torch.int32, torch.int64)

_COUNTED = {
    "t": "tokens",
    "s": "sequences",
    "d": "channels",
    "w": "taps",
    "n": "states",
    "g": "groups",
    "h": "heads",
    "hq": "query heads",
    "hk": "key heads",
    "p": "channels per head",
    "k": "channels per head",
    "m": "positions",
    "r": "rotated pairs",
}
_SHOWN_OFFSETS = 8


class _Axis(NamedTuple):
    """An axis of a spec, such as w-1: its base w has a size, and its shift is -1."""

    name: str
    base: str
    shift: int


class _Spec(NamedTuple):
    """The axes that a tensor may have, by their number, and those of them that are shifted."""

    alternatives: Mapping[int, tuple[_Axis, ...]]
    shifted: tuple[_Axis, ...]


_SPECS: dict[str, _Spec] = {}  # read so far; torch.compile warns of functools.cache


def bind(
    op: str,
    tensors: Mapping[str, tuple[Tensor | None, str]],
    cu_seqlens: Tensor,
    *,
    values: bool,
    fixed: Collection[str] = (),
    tables: Collection[str] = (),
) -> dict[str, int]:
    """Check every tensor of a call of `op` and return the size of each axis, such as `{"t": 36, "d": 64, "s": 2}`.

    tensors: by argument name, with its axes: "t d", "s d w-1?" (may be None), "t n | t g n" (alternatives). The first
        tensor leads: the others are compared with its dtype, device and number of tokens (axis t).
    cu_seqlens: int32 or int64 (s + 1,), on the same device.
    values: read the offsets on the host and check them too (on a GPU this waits for the device).
    fixed: tensors that are fp32, or fp64 with an fp64 leader. tables: tensors that have the leader's dtype or fp32.

    Raises ArgumentError naming the argument, what came and what was expected; LayoutError for the offsets.
    """
    given, specs = {}, {}
    for name, (tensor, spec) in tensors.items():
        specs[name] = spec
        if isinstance(tensor, Tensor):
            given[name] = tensor
        elif tensor is not None or not spec.endswith("?"):
            raise ArgumentError(
                f"{op}: {name} is {_kind(tensor)} but a tensor of axes ({spec.rstrip('?')}) was expected"
            )
    leader = next(iter(given))

    check_offsets_form(op, cu_seqlens)
    _check_devices(op, {**given, "cu_seqlens": cu_seqlens})
    _check_dtypes(op, given, fixed, tables)
    sizes = _bind_axes(op, given, specs, cu_seqlens)
    if values:
        check_offsets(op, cu_seqlens, sizes["t"], f"{leader} has", _listed({leader: given[leader]}))
    return sizes


def check_option(op: str, name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise ArgumentError unless `value` is one of `allowed`."""
    if not any(type(value) is type(one) and value == one for one in allowed):  # 1 == True, but 1 is no answer
        raise ArgumentError(f"{op}: {name} is {value!r} but {' or '.join(map(repr, allowed))} was expected")


def check_divides(op: str, sizes: Mapping[str, int], parts: str, whole: str) -> None:
    """Raise ArgumentError unless axis `whole` splits evenly over axis `parts` (heads over groups)."""
    if sizes[parts] < 1 or sizes[whole] % sizes[parts]:
        raise ArgumentError(
            f"{op}: {_counted(sizes[whole], whole)} cannot be shared evenly by {_counted(sizes[parts], parts)}"
        )


def check_offsets_form(op: str, cu_seqlens: Tensor) -> None:
    """Raise LayoutError unless `cu_seqlens` is an int32 or int64 tensor of shape (s + 1,); reads no value."""
    if not isinstance(cu_seqlens, Tensor):
        raise LayoutError(
            f"{op}: cu_seqlens is {_kind(cu_seqlens)} but an int32 or int64 tensor (s + 1,) was expected\n"
            "    PackLayout.from_lengths(lengths).cu_seqlens() makes one."
        )
    if cu_seqlens.dtype not in OFFSETS:
        raise LayoutError(
            f"{op}: cu_seqlens is {_short(cu_seqlens.dtype)} but int32 or int64 was expected\n"
            "    Offsets count tokens: cu_seqlens.to(torch.int32)"
        )
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise LayoutError(
            f"{op}: cu_seqlens has shape {tuple(cu_seqlens.shape)} but (s + 1,) was expected\n"
            "    One offset per sequence and the end of the last one; no sequence at all is [0]."
        )


def check_offsets(op: str, cu_seqlens: Tensor, n_tokens: int, holder: str = "the pack has", lines: str = "") -> None:
    """Raise LayoutError unless the offsets start at 0, never decrease and end by `n_tokens` (then comes slack).

    Reads the offsets on the host. holder and lines say in the message whose tokens they are.
    """
    offsets: list[int] = cu_seqlens.tolist()
    falls = next((i for i in range(1, len(offsets)) if offsets[i] < offsets[i - 1]), None)
    if offsets[0] != 0:
        entry, what = 0, f"starts at {offsets[0]} but 0 was expected"
    elif falls is not None:
        entry, what = falls, f"decreases from {offsets[falls - 1]} to {offsets[falls]} at entry {falls}"
    elif offsets[-1] > n_tokens:
        entry, what = len(offsets) - 1, f"ends at {offsets[-1]} but {holder} {n_tokens} tokens"
    else:
        return
    way_out = "Offsets count tokens from 0, never go back and may not pass the last one."
    shown = f"    {'cu_seqlens':<16} {_form(cu_seqlens)} {_excerpt(offsets, entry)}\n"
    raise LayoutError(f"{op}: cu_seqlens {what}\n{lines}{shown}    {way_out}")


def _check_devices(op: str, given: Mapping[str, Tensor]) -> None:
    leader, first = next(iter(given.items()))
    device = first.device
    for name, tensor in given.items():
        if tensor.device != device:
            kind = LayoutError if name == "cu_seqlens" else ArgumentError
            raise kind(
                f"{op}: {name} is on {tensor.device} but {leader} is on {device}\n"
                f"    All tensors of a call lie on one device: {name}.to({leader}.device)"
            )


def _check_dtypes(op: str, given: Mapping[str, Tensor], fixed: Collection[str], tables: Collection[str]) -> None:
    leader, first = next(iter(given.items()))
    if first.dtype not in FLOATS:
        expected = " or ".join(map(_short, FLOATS))
        raise ArgumentError(f"{op}: {leader} is {_short(first.dtype)} but {expected} was expected")
    own = (first.dtype,)
    wide = own if first.dtype == torch.float64 else (torch.float32,)
    table = own if first.dtype == torch.float32 else (first.dtype, torch.float32)
    for name, tensor in given.items():
        allowed = wide if name in fixed else table if name in tables else own
        if tensor.dtype not in allowed:
            expected = f"{' or '.join(map(_short, allowed))} was expected with {_short(first.dtype)} {leader}"
            listed = _listed(given).rstrip("\n")
            raise ArgumentError(f"{op}: {name} is {_short(tensor.dtype)} but {expected}\n{listed}")


def _bind_axes(op: str, given: Mapping[str, Tensor], specs: Mapping[str, str], cu_seqlens: Tensor) -> dict[str, int]:
    sizes = {"s": cu_seqlens.shape[0] - 1}
    holders = {"s": "cu_seqlens"}

    def complain(text: str) -> ArgumentError:
        return ArgumentError(f"{op}: {text}\n{_listed({**given, 'cu_seqlens': cu_seqlens})}".rstrip("\n"))

    for name, tensor in given.items():
        alternatives = _read(specs[name]).alternatives
        axes = alternatives.get(tensor.ndim)
        if axes is None:
            expected = " or ".join(f"({' '.join(axis.name for axis in axes)})" for axes in alternatives.values())
            raise complain(f"{name} has {tensor.ndim} axes but {expected} was expected")
        for axis, size in zip(axes, tensor.shape, strict=True):
            wanted = sizes.get(axis.base)
            if wanted is None:
                sizes[axis.base], holders[axis.base] = size - axis.shift, name
            elif size != wanted + axis.shift:
                raise complain(_mismatch(name, axis, size, wanted, holders[axis.base]))
    for spec in specs.values():
        for _, base, shift in _read(spec).shifted:
            if sizes.get(base, -shift) < -shift:
                raise complain(f"{holders[base]} has {_counted(sizes[base], base)} but at least {-shift} was expected")
    return sizes


def _mismatch(name: str, axis: _Axis, size: int, wanted: int, holder: str) -> str:
    if axis.shift:
        return (
            f"{name} has {size} along axis {axis.name} but {holder} has {axis.base} = {wanted}; "
            f"{wanted + axis.shift} was expected"
        )
    return f"{name} has {_counted(size, axis.base)} but {holder} has {wanted}"


def _read(spec: str) -> _Spec:
    if spec not in _SPECS:
        forms = [tuple(map(_parse, form.split())) for form in spec.rstrip("?").split("|")]
        shifted = tuple(axis for axes in forms for axis in axes if axis.shift)
        _SPECS[spec] = _Spec({len(axes): axes for axes in forms}, shifted)
    return _SPECS[spec]


def _parse(axis: str) -> _Axis:
    match = re.fullmatch(r"([A-Za-z]+)(-\d+)?", axis)
    assert match, f"axis {axis!r} is neither a name nor a name and a shift such as w-1"
    return _Axis(axis, match[1], int(match[2] or 0))


def _counted(size: int, axis: str) -> str:
    return f"{size} {_COUNTED.get(axis, 'entries')} (axis {axis})"


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


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
