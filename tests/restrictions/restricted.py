"""Kernels with the restrictions of real ones, which refuse calls in the ways that kernel authors use.

A kernel of the museum, correct or with a bug that leaks across boundaries, called after checks of its arguments.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from packproof.harness.process.naming.location import Location

CORRECT = {
    "causal_conv1d": "packproof.museum.boundaries:by_sequence_ids",
    "rope": "packproof.museum.rotary:correct",
    "ssd": "packproof.museum.ssd:quadratic",
    "attention": "packproof.museum.attention:correct",
}
LEAKING = {
    "causal_conv1d": "packproof.museum.convolution:C1",
    "rope": "packproof.museum.rotary:R1",
    "ssd": "packproof.museum.ssd:D2",
    "attention": "packproof.museum.attention:A1",
}


class Call:
    """What the checks of arguments read, the same for all ops."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self.x: Tensor = next(arguments[n] for n in ("x", "q") if n in arguments)
        self.cu_seqlens: Tensor = arguments["cu_seqlens"]

    def __getattr__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def head(self) -> int:
        """Of attention and rope the head, of an SSD the state, of a convolution the window."""
        if self.weight is not None:
            return int(self.weight.shape[1])
        return int((self.x if self.B is None else self.B).shape[-1])


@dataclass(frozen=True)
class Restriction:
    """conditions: as declared, by op. holds: for a call. text: of the error. asserts: the check as a bare assert."""

    name: str
    conditions: Mapping[str, Sequence[str]]
    holds: Callable[[Call], bool]
    text: str
    asserts: Callable[[Call], None]


def _assert_heads(call):
    assert call.head in (2, 3, 4, 16, 64, 128), call.head
    if call.weight is None:
        assert call.head in (16, 64)


def _assert_channels(call):
    assert call.x.shape[-1] % 8 == 0
    assert call.v is None or call.v.shape[-1] % 8 == 0


def _assert_rotary(call):
    assert 2 * call.cos.shape[1] % 32 == 0


def _assert_multiple(call):
    assert call.x.shape[0] % 16 == 0


def _assert_at_most(call):
    assert call.x.shape[0] <= 100


def _assert_bf16(call):
    assert call.x.dtype is torch.bfloat16


def _assert_contiguous(call):
    assert call.x.is_contiguous()


def _assert_no_empty(call):
    assert (call.cu_seqlens.diff() > 0).all(), "empty"


def _assert_bias(call):
    assert call.bias is not None


def _assert_skip(call):
    assert call.D is not None


def _assert_no_gradients(call):
    assert not call.x.requires_grad


_EVERY = ("causal_conv1d", "rope", "ssd", "attention")


def _for(ops: Sequence[str], *conditions: str) -> dict[str, Sequence[str]]:
    return dict.fromkeys(ops, conditions)


RESTRICTIONS = {
    r.name: r
    for r in (
        Restriction(
            "heads",
            {"causal_conv1d": ("2 <= w <= 4",), "rope": ("k in (16, 64)",), "ssd": ("n in (16, 64)",)}
            | {"attention": ("k in (16, 64)",)},
            lambda call: call.head in ((2, 3, 4) if call.weight is not None else (16, 64)),
            "head_dim must be one of (16, 64)",
            _assert_heads,
        ),
        Restriction(
            "channels",
            {"causal_conv1d": ("d % 8 == 0",), "rope": ("k % 8 == 0",), "ssd": ("p % 8 == 0",)}
            | {"attention": ("k % 8 == 0", "v % 8 == 0")},
            lambda call: call.x.shape[-1] % 8 == 0 and (call.v is None or call.v.shape[-1] % 8 == 0),
            "the last dimension must be divisible by 8",
            _assert_channels,
        ),
        Restriction(
            "rotary",
            _for(("rope",), "r % 16 == 0"),
            lambda call: call.cos.shape[1] % 16 == 0,
            "rotary width must be a multiple of 32",
            _assert_rotary,
        ),
        Restriction(
            "multiple",
            _for(_EVERY, "tokens % 16 == 0"),
            lambda call: len(call.x) % 16 == 0,
            "number of tokens must be a multiple of 16",
            _assert_multiple,
        ),
        Restriction(
            "at most",
            _for(_EVERY, "tokens <= 100"),
            lambda call: len(call.x) <= 100,
            "at most 100 tokens are supported",
            _assert_at_most,
        ),
        Restriction(
            "bf16",
            _for(_EVERY, "dtype == bf16"),
            lambda call: call.x.dtype is torch.bfloat16,
            "only bfloat16 is supported",
            _assert_bf16,
        ),
        Restriction(
            "contiguous",
            _for(_EVERY, "contiguous"),
            lambda call: call.x.is_contiguous(),
            "expected a contiguous tensor",
            _assert_contiguous,
        ),
        Restriction(
            "no empty",
            _for(_EVERY, "length > 0"),
            lambda call: bool((call.cu_seqlens.diff() > 0).all()),
            "empty sequences are not supported",
            _assert_no_empty,
        ),
        Restriction(
            "bias",
            _for(("causal_conv1d",), "bias"),
            lambda call: call.bias is not None,
            "bias is required",
            _assert_bias,
        ),
        Restriction("skip", _for(("ssd",), "D"), lambda call: call.D is not None, "D is required", _assert_skip),
        Restriction(
            "no gradients",
            _for(_EVERY, "not gradients"),
            lambda call: not call.x.requires_grad,
            "the backward pass is not implemented",
            _assert_no_gradients,
        ),
    )
}
SEVERAL = {
    "causal_conv1d": ("channels", "multiple", "no empty", "bias"),
    "rope": ("heads", "rotary", "at most"),
    "ssd": ("heads", "channels", "no empty", "skip", "bf16"),
    "attention": ("heads", "multiple", "no empty", "bf16"),
}


def _not_implemented(restriction, call):
    if not restriction.holds(call):
        raise NotImplementedError(restriction.text)


def _value_error(restriction, call):
    if not restriction.holds(call):
        raise ValueError(f"{restriction.text}, got a tensor of shape {tuple(call.x.shape)}")


def _runtime_error(restriction, call):
    if not restriction.holds(call):
        raise RuntimeError(f"Expected: {restriction.text}")


def _bare_assert(restriction, call):
    restriction.asserts(call)


WAYS = {
    "NotImplementedError": _not_implemented,
    "ValueError": _value_error,
    "RuntimeError": _runtime_error,
    "assert": _bare_assert,
}


def restricted(op: str, names: Sequence[str], way: str, *, leaking: bool, calls: list[str] | None = None) -> Any:
    """The kernel with its checks. calls: gets an entry for each call that passed them."""
    kernel = Location.parse((LEAKING if leaking else CORRECT)[op]).load()

    @wraps(kernel)
    def checked(**arguments):
        for name in names:
            WAYS[way](RESTRICTIONS[name], Call(arguments))
        if calls is not None:
            calls.append(op)
        return kernel(**arguments)

    return checked


def declared(op: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for name in names for text in RESTRICTIONS[name].conditions[op])


class _NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        raise RuntimeError("backward is not supported")


def values_only(op: str, *, leaking: bool) -> Any:
    """A kernel that computes values and refuses the backward pass."""
    kernel = Location.parse((LEAKING if leaking else CORRECT)[op]).load()

    @wraps(kernel)
    def forward(**arguments):
        y = kernel(**arguments)
        return tuple(map(_NoBackward.apply, y)) if isinstance(y, tuple) else _NoBackward.apply(y)

    return forward
