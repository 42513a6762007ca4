"""The declaration of an op's roundings, for stable ops with an unstable form on absolute values."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packproof.properties.declarations.promises import Promises

if TYPE_CHECKING:
    from packproof.properties.bounds.signs import Signs  # imports torch


@dataclass(frozen=True)
class Roundings:
    """How to draw the roundings of an op."""

    make: Callable[[Promises, "Signs"], Callable[..., Any]]
    """Makes a function with the reference's signature, from a kernel's promises and random signs of its roundings."""
    heads: Collection[str]
    """The axes of heads; heads do not depend on each other."""
    state: Collection[str]
    """The axes of the state. The product of their sizes and `width` is the cost of a token."""
    operands: Callable[[Promises, "Signs"], Callable[..., Any]] | None = None
    """As `make`, for the roundings of operands alone, of a kernel that promises `cumsum`: its sums are fp32 though its
    operands are rounded. None: as `make`.
    """
    width: int = 1
    """A factor of the cost of a token."""
