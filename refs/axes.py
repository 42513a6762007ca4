"""Axis specs, such as "t g n", "s d w-1?" or "t n | t g n": the shapes that a tensor may have."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from packproof.refs.errors import UsageError

Axes = tuple[str, ...]

KEYS = "u"  # the axis of the second packing; t is that of the first
SLOTS = "c"  # the axis of a pool of states, of which each sequence has one, or none


class Axis(NamedTuple):
    """An axis of a spec, such as w-1: its base w has a size, and its shift is -1."""

    name: str
    base: str
    shift: int


@dataclass(frozen=True)
class Spec:
    """A parsed spec: the alternatives for the axes, and whether the tensor may be absent."""

    alternatives: tuple[Axes, ...]
    optional: bool


@cache
def parse(spec: str) -> Spec:
    """Parse "t n | t g n?" into its alternatives; a `?` at the end makes the tensor optional.

    Raises UsageError for an axis that is not a name, a name less a number, or a number.
    """
    text = spec.strip()
    alternatives = tuple(tuple(part.split()) for part in text.rstrip("?").split("|"))
    for axes in alternatives:
        for name in axes:
            read_axis(name)
    return Spec(alternatives, text.endswith("?"))


@cache
def read_axis(name: str) -> Axis:
    """Read one axis, such as w-1. Raises UsageError as `parse` does."""
    match = re.fullmatch(r"(\w+)(-\d+)?", name)
    if not match:
        raise UsageError(f"axes: {name!r} is not an axis; expected a name such as d, or w-1 for one less than w")
    return Axis(name, match[1], int(match[2] or 0))


def size(name: str, sizes: Mapping[str, int]) -> int:
    """The size of an axis: its own, or that of `w` less 1 for `w-1`; a number is itself."""
    _, base, shift = read_axis(name)
    return (int(base) if base.isdigit() else sizes[base]) + shift


def shape(axes: Axes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor with these axes."""
    return tuple(size(name, sizes) for name in axes)


def role(axes: Axes) -> str:
    """ "token", "sequence" or "shared": what the leading axis makes of a tensor."""
    return {"t": "token", KEYS: "token", "s": "sequence"}.get(axes[0] if axes else "", "shared")


def packs_keys(axes: Axes) -> bool:
    """Whether its rows are those of the second packing, which `cu_seqlens_k` describes."""
    return axes[:1] == (KEYS,)


def is_shared(axes: Axes) -> bool:
    """Whether all sequences share it: it has no row of a token, of a sequence or of a pool of states."""
    return role(axes) == "shared" and not in_pool(axes)


def in_pool(axes: Axes) -> bool:
    """Whether its rows are the slots of a pool, of which the op's indices give one to each sequence."""
    return axes[:1] == (SLOTS,)
