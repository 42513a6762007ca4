"""What an op declares of its roundings, where it is stable, but not in absolute values."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packproof.properties.promises import Promises

if TYPE_CHECKING:
    from packproof.properties.bounds.signs import Signs  # which needs torch


@dataclass(frozen=True)
class Roundings:
    """How the roundings of an op are drawn.

    make: from a kernel's promises and random signs, a function with the reference's signature whose roundings have
    those signs. heads: the axes of heads, which do not depend on each other. state, width: the axes whose sizes, times
    the width, say how much one token costs.
    """

    make: Callable[[Promises, "Signs"], Callable[..., Any]]
    heads: Collection[str]
    state: Collection[str]
    width: int = 1
