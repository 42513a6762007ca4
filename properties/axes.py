"""Axis specs, such as "t g n", "s d w-1?" or "t n | t g n", and the role that they give a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Spec:
    """A parsed spec: the alternatives for the axes, and whether the tensor may be absent."""

    alternatives: tuple[Axes, ...]
    optional: bool


def parse(spec: str) -> Spec:
    """Parse "t n | t g n?" into its alternatives; a `?` at the end makes the tensor optional."""
    text = spec.strip()
    return Spec(tuple(tuple(part.split()) for part in text.rstrip("?").split("|")), text.endswith("?"))


def size(axis: str, sizes: Mapping[str, int]) -> int:
    """The size of an axis: its own, or that of `w` less 1 for `w-1`; a number is itself."""
    name, _, less = axis.partition("-")
    return (int(name) if name.isdigit() else sizes[name]) - int(less or 0)


def shape(axes: Axes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size(axis, sizes) for axis in axes)


def role(axes: Axes) -> str:
    """ "token", "sequence" or "shared": what the leading axis makes of a tensor."""
    return {"t": "token", "s": "sequence"}.get(axes[0] if axes else "", "shared")
