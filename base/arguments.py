"""Argument checks of ops: shapes, dtypes, devices and offsets, the same for references and kernels."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from operator import index
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import KEYS, Axes, Axis, parse, read_axis, shape
from packproof.base.errors import ArgumentError, LayoutError, contradiction
from packproof.base.provenance.host_work import argument_checks
from packproof.base.signatures import Signature
from packproof.base.wording import kind, plural

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)
OFFSETS = (torch.int32, torch.int64)

_AXIS_NOUNS = {
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
    "a": "draft",
    "nv": "vocabulary entry",
    "e": "expert",
    "f": "output channel",
    "b": "block",
    "bf": "block of output channels",
}
_TOKENS = Axis("t", "t", 0)
_EXCERPT_OFFSETS = 8
_MAX_REPR_LENGTH = 40


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
    inputs = _present_inputs(signature, tensors)
    leader = next(iter(inputs))
    offsets = {"cu_seqlens": cu_seqlens, **({} if cu_seqlens_k is None else {"cu_seqlens_k": cu_seqlens_k})}
    for name, packing in offsets.items():
        check_offsets_form(signature.op, packing, name)
    _check_devices(signature, inputs, offsets)
    _check_dtypes(signature, inputs)
    sizes = _bind_axes(signature, inputs, offsets)
    if values:
        check_offsets(signature.op, cu_seqlens, sizes["t"], f"{leader} has", _tensor_lines({leader: inputs[leader]}))
    if values and cu_seqlens_k is not None:
        key_input = next(n for n in inputs if signature.inputs[n].split()[0] == KEYS)
        key_lines = _tensor_lines({key_input: inputs[key_input]})
        check_offsets(signature.op, cu_seqlens_k, sizes[KEYS], f"{key_input} has", key_lines, name="cu_seqlens_k")
    for group_axis, grouped_axis in signature.groups.items():
        if group_axis in sizes and (sizes[group_axis] < 1 or sizes[grouped_axis] % sizes[group_axis]):
            grouped, groups = (describe_axis_size(sizes[axis], axis) for axis in (grouped_axis, group_axis))
            raise ArgumentError(f"{signature.op}: {grouped} cannot be shared evenly by {groups}")
    return sizes


def check_options(signature: Signature, **options: Any) -> None:
    """Raise ArgumentError unless each option has one of its values."""
    for name, value in options.items():
        check_option(signature.op, name, value, signature.options[name])


def check_step(function: str, specs: Mapping[str, str], **tensors: Tensor | None) -> None:
    """Raise ArgumentError unless the tensors of a step function, one token without a pack, fit their axes.

    specs: axes such as "h p n", by name of the tensor, as in a signature.
    tensors: by name; floats, on one device.
    """
    sizes: dict[str, int] = {}
    inputs = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    leader = next(iter(inputs), "")
    for name, spec in specs.items():
        tensor, parsed = tensors[name], parse(spec)
        if tensor is None and parsed.optional:
            continue
        expected = " or ".join(f"({' '.join(axes)})" for axes in parsed.alternatives)
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{function}: {name} is {kind(tensor)} but a tensor of axes {expected} was expected")
        check_floats(function, name, tensor)
        if tensor.device != inputs[leader].device:
            mismatch = f"{name} is on {tensor.device} but {leader} is on {inputs[leader].device}"
            raise ArgumentError(f"{function}: {mismatch}\n    All tensors of a call lie on one device.")
        candidates = (_step_sizes(axes, tensor.shape, sizes) for axes in parsed.alternatives)
        new_sizes = next((candidate for candidate in candidates if candidate is not None), None)
        if new_sizes is None:
            shapes = "".join(
                f"\n    {input_name:<16} {_dtype_and_shape(input_tensor)}"
                for input_name, input_tensor in inputs.items()
            )
            raise ArgumentError(f"{function}: {name} is {tuple(tensor.shape)} but {expected} was expected{shapes}")
        sizes = new_sizes


def _step_sizes(axes: Axes, tensor_shape: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Add the axis sizes of one more tensor; None if it does not fit the known sizes."""
    if len(axes) != len(tensor_shape):
        return None
    new_sizes = dict(sizes)
    for axis, size in zip(map(read_axis, axes), tensor_shape, strict=True):
        expected = int(axis.base) if axis.base.isdigit() else new_sizes.setdefault(axis.base, size - axis.shift)
        if size != expected + axis.shift:
            return None
    return new_sizes


def check_floats(function: str, name: str, tensor: Any) -> None:
    """Raise ArgumentError unless the value is a tensor of a supported float dtype, or of complex numbers."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{function}: {name} is {kind(tensor)} but a tensor was expected")
    if tensor.dtype not in FLOATS and not tensor.is_complex():  # complex: for differentiation by complex steps
        expected = " or ".join(map(_dtype_name, FLOATS))
        raise ArgumentError(f"{function}: {name} is {_dtype_name(tensor.dtype)} but {expected} was expected")


def whole_number(
    function: str, name: str, value: Any, minimum: int = 0, error: type[ArgumentError] = LayoutError
) -> int:
    """The value as an int. Raises `error` unless it is a whole number, not a bool, of at least `minimum`."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise error(f"{function}: {name} is {_short_repr(value)}; a whole number was expected")
    if number < minimum:
        raise error(f"{function}: {name} is {number}; {minimum} or more was expected")
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
    return _fixed_dtype(leader) if name in signature.fixed else leader


def empty_output(signature: Signature, name: str, leader: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """An uninitialized tensor with the shape, dtype and device of an output."""
    (axes,) = parse(signature.outputs[name]).alternatives
    return leader.new_empty(shape(axes, sizes), dtype=_dtype(signature, name, leader.dtype))


def empty_gradients(signature: Signature, leader: Tensor, *other_inputs: Tensor | None) -> tuple[Tensor, ...]:
    """An uninitialized tensor like the gradient of each input, in order; an empty one for an absent input."""
    return tuple(
        leader.new_empty(0, dtype=_dtype(signature, name, leader.dtype))
        if x is None
        else leader.new_empty(x.shape, dtype=x.dtype)
        for name, x in zip(signature.inputs, (leader, *other_inputs), strict=True)
    )


def _present_inputs(signature: Signature, tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """The tensors present, in the order of the signature's inputs."""
    inputs = {}
    for name, forms in signature.forms.items():
        tensor = tensors.pop(name, None)
        if isinstance(tensor, Tensor):
            inputs[name] = tensor
        elif tensor is not None or not forms.optional:
            expected = f"a tensor of axes ({signature.inputs[name].rstrip('?')}) was expected"
            raise ArgumentError(f"{signature.op}: {name} is {kind(tensor)} but {expected}")
    if tensors:
        raise TypeError(f"{signature.op} has no input {' or '.join(tensors)}; it has {', '.join(signature.inputs)}")
    return inputs


def _check_devices(signature: Signature, inputs: Mapping[str, Tensor], offsets: Mapping[str, Tensor]) -> None:
    leader, leading_tensor = next(iter(inputs.items()))
    device = leading_tensor.device
    for name, tensor in {**inputs, **offsets}.items():
        if tensor.device != device:
            error_type = LayoutError if name in offsets else ArgumentError
            raise error_type(
                f"{signature.op}: {name} is on {tensor.device} but {leader} is on {device}\n"
                f"    All tensors of a call lie on one device: {name}.to({leader}.device)"
            )


def _check_dtypes(signature: Signature, inputs: Mapping[str, Tensor]) -> None:
    leader, leading_tensor = next(iter(inputs.items()))
    leader_dtype = leading_tensor.dtype
    if leader_dtype not in FLOATS:
        expected = " or ".join(map(_dtype_name, FLOATS))
        raise ArgumentError(f"{signature.op}: {leader} is {_dtype_name(leader_dtype)} but {expected} was expected")
    for name, tensor in inputs.items():
        allowed = _allowed_dtypes(signature, name, leader_dtype)
        if tensor.dtype not in allowed:
            leader_text = "" if name in signature.integers else f" with {_dtype_name(leader_dtype)} {leader}"
            expected = f"{' or '.join(map(_dtype_name, allowed))} was expected{leader_text}"
            lines = _tensor_lines(inputs).rstrip("\n")
            raise ArgumentError(f"{signature.op}: {name} is {_dtype_name(tensor.dtype)} but {expected}\n{lines}")


def _allowed_dtypes(signature: Signature, name: str, leader: torch.dtype) -> tuple[torch.dtype, ...]:
    """The allowed dtypes of an input, given the dtype of the leader, the usual one first."""
    if name in signature.integers:
        return OFFSETS
    usual_dtype = _dtype(signature, name, leader)
    allows_float32 = name in signature.tables or (name in signature.float32 and leader in HALVES)
    alternatives = (torch.float32,) if allows_float32 else narrow_dtypes(leader) if name in signature.narrow else ()
    return tuple(dict.fromkeys((usual_dtype, *alternatives)))


def narrow_dtypes(leader: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtypes allowed for `narrow` inputs beside fp32, given the dtype of the leader."""
    return (leader,) if leader in HALVES else HALVES if leader == torch.float32 else ()


def widen_narrow_inputs(signature: Signature, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors, with `narrow` inputs cast to their fixed dtype. Their gradients are rounded back, once."""
    fixed_dtype = _fixed_dtype(next(iter(tensors.values())).dtype)
    narrow = {name: x.to(fixed_dtype) for name, x in tensors.items() if name in signature.narrow and x is not None}
    return {**tensors, **narrow}


def _bind_axes(signature: Signature, inputs: Mapping[str, Tensor], offsets: Mapping[str, Tensor]) -> dict[str, int]:
    sizes = {"s": offsets["cu_seqlens"].shape[0] - 1}
    holders = {"s": "cu_seqlens"}

    def axis_error(text: str) -> ArgumentError:
        return contradiction(f"{signature.op}: {text}\n{_tensor_lines({**inputs, **offsets})}".rstrip("\n"))

    if "cu_seqlens_k" in offsets and (n_key_sequences := offsets["cu_seqlens_k"].shape[0] - 1) != sizes["s"]:
        raise axis_error(f"cu_seqlens_k has {describe_axis_size(n_key_sequences, 's')} but cu_seqlens has {sizes['s']}")

    for name, tensor in inputs.items():
        by_ndim = signature.forms[name].by_ndim
        axes = by_ndim.get(tensor.ndim)
        if axes is None:
            expected = " or ".join(f"({' '.join(axis.name for axis in axes)})" for axes in by_ndim.values())
            raise axis_error(f"{name} has {plural(tensor.ndim, 'axis')} but {expected} was expected")
        for declared_axis, size in zip(axes, tensor.shape, strict=True):
            axis = _TOKENS if declared_axis.base == KEYS and "cu_seqlens_k" not in offsets else declared_axis
            if axis.added:  # the size of the base is known, from an input before this one
                axis = Axis(axis.name, axis.added, axis.shift + sizes[axis.base])
            known_size = sizes.get(axis.base)
            if known_size is None:
                sizes[axis.base], holders[axis.base] = size - axis.shift, name
            elif size != known_size + axis.shift:
                raise axis_error(_mismatch_message(name, axis, size, known_size, holders[axis.base]))
            if declared_axis.base == KEYS:
                sizes[KEYS] = sizes[axis.base]
    for _, base, shift, added in signature.shifted:
        if not added and sizes.get(base, -shift) < -shift:
            raise axis_error(
                f"{holders[base]} has {describe_axis_size(sizes[base], base)} but at least {-shift} was expected"
            )
    return sizes


def _fixed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of fixed tensors beside tokens of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_option(op: str, name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise ArgumentError unless `value` is one of `allowed`."""
    if not any(type(value) is type(choice) and value == choice for choice in allowed):  # 1 == True, but 1 is not a flag
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
            f"{op}: {name} is {_dtype_name(cu_seqlens.dtype)} but int32 or int64 was expected\n"
            f"    Offsets count tokens: {name}.to(torch.int32)"
        )
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise LayoutError(
            f"{op}: {name} has shape {tuple(cu_seqlens.shape)} but (s + 1,) was expected\n"
            "    One offset per sequence and the end of the last one; [0] for no sequences."
        )


@argument_checks()
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
    decrease = next((i for i in range(1, len(offsets)) if offsets[i] < offsets[i - 1]), None)
    if offsets[0] != 0:
        entry, problem = 0, f"starts at {offsets[0]} but 0 was expected"
    elif decrease is not None:
        entry, problem = decrease, f"decreases from {offsets[decrease - 1]} to {offsets[decrease]} at entry {decrease}"
    elif offsets[-1] > n_tokens:
        entry, problem = len(offsets) - 1, f"ends at {offsets[-1]} but {holder} {plural(n_tokens, 'token')}"
    else:
        return
    hint = "Offsets count tokens from 0, never decrease and may not pass the last one."
    offsets_line = f"    {name:<16} {_dtype_and_shape(cu_seqlens)} {_excerpt(offsets, entry)}\n"
    raise LayoutError(f"{op}: {name} {problem}\n{lines}{offsets_line}    {hint}")


def host_offsets(op: str, cu_seqlens: Tensor, name: str = "cu_seqlens") -> list[int]:
    """The values of the offsets, read on the host. Raises LayoutError for a meta tensor: it has no values."""
    if cu_seqlens.is_meta:
        raise LayoutError(f"{op}: {name} is on meta, where it has no values, but they are read here")
    values: list[int] = cu_seqlens.tolist()
    return values


def move_to_device(owner: str, tensor: Tensor, device: Any) -> Tensor:
    """Move a tensor to a device; None leaves it. Raises LayoutError for a device not available here."""
    if device is None:
        return tensor
    try:
        return tensor.to(torch.device(device))
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"{owner}: device is {device!r}, which cannot be used here: {reason}") from None


def _mismatch_message(name: str, axis: Axis, size: int, expected: int, holder: str) -> str:
    if axis.shift:
        return (
            f"{name} has {size} along axis {axis.name} but {holder} has {axis.base} = {expected}; "
            f"{expected + axis.shift} was expected"
        )
    return f"{name} has {describe_axis_size(size, axis.base)} but {holder} has {expected}"


def describe_axis_size(size: int, axis: str) -> str:
    return f"{plural(size, _AXIS_NOUNS.get(axis, 'entry'))} (axis {axis})"


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_REPR_LENGTH else kind(value)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_and_shape(tensor: Tensor) -> str:
    return f"{_dtype_name(tensor.dtype)} {tuple(tensor.shape)}"


def _tensor_lines(tensors: Mapping[str, Tensor]) -> str:
    return "".join(f"    {name:<16} {_dtype_and_shape(tensor)}\n" for name, tensor in tensors.items())


def _excerpt(offsets: list[int], entry: int) -> str:
    start = min(max(0, entry - _EXCERPT_OFFSETS // 2), max(0, len(offsets) - _EXCERPT_OFFSETS))
    entries = ", ".join(map(str, offsets[start : start + _EXCERPT_OFFSETS]))
    return f"[{'..., ' if start else ''}{entries}{', ...' if start + _EXCERPT_OFFSETS < len(offsets) else ''}]"
