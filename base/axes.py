"""Axis specs, such as "t g n", "s d w-1?" or "t n | t g n": the possible shapes of a tensor."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from packproof.base.errors import UsageError

Axes = tuple[str, ...]

KEYS = "u"  # tokens packed by cu_seqlens_k; those packed by cu_seqlens are t
SLOTS = "c"  # slots of a pool of states; each sequence has one or none


class Axis(NamedTuple):
    """An axis of a spec, such as w-1."""

    name: str
    """The axis as written: w-1."""
    base: str
    """The name with a size, or a number: w."""
    shift: int
    """Added to the size of the base: -1."""
    added: str = ""
    """Another name whose size is added: a, in w+a-2."""


@dataclass(frozen=True)
class Spec:
    """A parsed spec."""

    alternatives: tuple[Axes, ...]
    """The possible axes."""
    optional: bool
    """Whether the tensor may be absent."""


@cache
def parse(spec: str) -> Spec:
    """Parse "t n | t g n?" into its alternatives; a `?` at the end makes the tensor optional.

    Raises UsageError unless each axis is a name, a sum of two, one of these less a number, or a number.
    """
    text = spec.strip()
    alternatives = tuple(tuple(part.split()) for part in text.rstrip("?").split("|"))
    for axes in alternatives:
        for name in axes:
            read_axis(name)
    return Spec(alternatives, text.endswith("?"))


@cache
def read_axis(name: str) -> Axis:
    """Read one axis, such as w-1 or w+a-2. Raises UsageError as `parse` does."""
    match = re.fullmatch(r"(\w+)(?:\+([^\W\d]\w*))?(-\d+)?", name)
    if not match:
        raise UsageError(f"axes: {name!r} is not an axis; expected a name such as d, or w-1 for one less than w")
    return Axis(name, match[1], int(match[3] or 0), match[2] or "")


def size(name: str, sizes: Mapping[str, int]) -> int:
    """The size of an axis: of `w-1`, the size of w less 1; of `w+a-2`, both sizes less 2; of a number, the number."""
    _, base, shift, added = read_axis(name)
    return (int(base) if base.isdigit() else sizes[base]) + (sizes[added] if added else 0) + shift


def shape(axes: Axes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor with these axes."""
    return tuple(size(name, sizes) for name in axes)


def role(axes: Axes) -> str:
    """The role of a tensor by its leading axis: "token", "sequence" or "shared"."""
    return {"t": "token", KEYS: "token", "s": "sequence"}.get(axes[0] if axes else "", "shared")


def has_key_rows(axes: Axes) -> bool:
    """Whether the rows of a tensor are keys, packed by `cu_seqlens_k`."""
    return axes[:1] == (KEYS,)


def is_shared(axes: Axes) -> bool:
    """Whether all sequences share a tensor: its rows are no tokens, sequences or slots of a pool."""
    return role(axes) == "shared" and not is_in_pool(axes)


def is_in_pool(axes: Axes) -> bool:
    """Whether the rows of a tensor are slots of a pool, assigned to sequences by the op's `state_indices`."""
    return axes[:1] == (SLOTS,)
