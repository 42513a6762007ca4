"""Calls of ops, each correct, and what is made of one to be wrong in each of its tensors."""

from collections.abc import Callable, Iterator, Mapping
from inspect import signature as signature_of
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.base.signatures import SIGNATURES
from tests.wrong_calls.refused import Wrong

CU = torch.tensor([0, 2, 5])
SIZES = {
    "t": 5,
    "u": 5,
    "s": 2,
    "d": 4,
    "w": 3,
    "n": 2,
    "g": 2,
    "h": 4,
    "p": 2,
    "hq": 4,
    "hk": 2,
    "hv": 4,
    "k": 6,
    "v": 3,
    "m": 3,
    "r": 2,
    "c": 3,
    "f": 2,
    "e": 4,
    "b": 2,
}
NOT_TENSORS: Mapping[str, Any] = {"a list": [1.0], "a number": 3, "text": "x"}


class Call(NamedTuple):
    """A function of an op, its arguments by name, and the name that its messages begin with."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    op: str

    def but(self, **changes: Any) -> Callable[[], object]:
        return lambda: self.function(**{**self.arguments, **changes})

    def without(self, name: str) -> Callable[[], object]:
        return lambda: self.function(**{other: value for other, value in self.arguments.items() if other != name})

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.arguments.items() if name in SIGNATURES[self.op].inputs}


def call(function: Callable[..., Any], op: str, **sizes_of: int) -> Call:
    """The op on two sequences, with every input that it may have; sizes_of: axes of other sizes than usual."""
    signature = SIGNATURES[op]
    tensors = {}
    for name, forms in signature.forms.items():
        axes = list(forms.by_ndim.values())[-1]
        sizes = [{**SIZES, **sizes_of}[axis.base] + axis.shift for axis in axes]
        tensors[name] = torch.zeros(sizes, dtype=torch.int64) if name in signature.integers else torch.ones(sizes)
    if "state_indices" in tensors:
        tensors["state_indices"] += torch.arange(SIZES["s"])  # each sequence has a slot for itself
    return Call(function, {**tensors, "cu_seqlens": CU}, op)


def wrong_calls(call: Call) -> Iterator[tuple[str, Wrong]]:
    """Each tensor of another type, number of axes, size, dtype and device; options of other values; other names."""
    named, signature = f"{call.op}: ", SIGNATURES[call.op]
    for name, tensor in call.tensors.items():
        for what, value in NOT_TENSORS.items():
            yield f"{name} is {what}", Wrong(call.but(**{name: value}), (f"{named}{name} is a", "a tensor of axes ("))
        yield f"{name} has an axis more", Wrong(call.but(**{name: tensor[None, None]}), (named, name, "axes but ("))
        other, kind = (tensor.float(), "int64") if name in signature.integers else (tensor.int(), "float")
        came = f"{named}{name} is {str(other.dtype).removeprefix('torch.')}"
        yield f"{name} holds other numbers", Wrong(call.but(**{name: other}), (came, kind))
        yield f"{name} is elsewhere", Wrong(call.but(**{name: tensor.to("meta")}), (named, name, "is on meta", "cpu"))
        for i, base in _tied_axes(call, name):
            short = tensor.narrow(i, 0, tensor.shape[i] - 1)
            yield f"{name} is short along {base}", Wrong(call.but(**{name: short}), (named, name, str(short.shape[i])))
        if not signature.forms[name].optional:
            yield f"{name} is None", Wrong(call.but(**{name: None}), (f"{named}{name} is None", "a tensor of axes ("))
            yield f"{name} is missing", Wrong(call.without(name), (f"{name} is missing", "It takes "))
    for option in signature.options:
        for value in (2, "yes"):
            if option in _parameters(call):
                said = (f"{named}{option} is {value!r}", "was expected")
                yield f"{option} is {value}", Wrong(call.but(**{option: value}), said)
    yield "cu_seqlens is missing", Wrong(call.without("cu_seqlens"), ("cu_seqlens is missing", "It takes "))
    yield "an unknown name", Wrong(call.but(cu_seqlen=CU), ("cu_seqlen is no argument", "did you mean cu_seqlens?"))
    yield from _wrong_offsets(call, named)


def _wrong_offsets(call: Call, named: str) -> Iterator[tuple[str, Wrong]]:
    last = f"{named}cu_seqlens "
    for what, offsets, says in (
        ("a list", [0, 2, 5], (f"{last}is a list", "PackLayout.from_lengths(lengths).cu_seqlens()")),
        ("None", None, (f"{last}is None", "an int32 or int64 tensor")),
        ("floats", CU.float(), (f"{last}is float32", "int32 or int64")),
        ("of another device", CU.to("meta"), (f"{last}is on meta", "on cpu")),
        ("a table", CU[None], (f"{last}has shape (1, 3)", "(s + 1,)")),
        ("empty", CU[:0], (f"{last}has shape (0,)", "(s + 1,)")),
        ("not from 0", CU + 1, (f"{last}starts at 1", "0 was expected")),
        ("falling", torch.tensor([0, 4, 3]), (f"{last}decreases from 4 to 3 at entry 2", "never decrease")),
        ("past the end", torch.tensor([0, 2, 6]), (f"{last}ends at 6", "5 tokens")),
    ):
        yield f"cu_seqlens is {what}", Wrong(call.but(cu_seqlens=offsets), says)


def _tied_axes(call: Call, name: str) -> Iterator[tuple[int, str]]:
    """The axes of a tensor whose size another argument decides too."""
    signature = SIGNATURES[call.op]
    shared = [
        axis.base for tensor in call.tensors for axis in signature.forms[tensor].by_ndim[call.tensors[tensor].ndim]
    ]
    for i, axis in enumerate(signature.forms[name].by_ndim[call.tensors[name].ndim]):
        if shared.count(axis.base) > 1 or axis.base in {"t", "s", *signature.groups, *signature.groups.values()}:
            yield i, axis.name


def _parameters(call: Call) -> tuple[str, ...]:

    return tuple(signature_of(call.function).parameters)
