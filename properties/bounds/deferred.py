"""Values that cost much and are seldom needed."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """A value that is computed when it is first asked for.

    make: computes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._values: list[T] = []

    def __call__(self) -> T:
        if self._make is not None:
            self._values.append(self._make())
            self._make = None  # what it was computed from need not be kept
        return self._values[0]

    @property
    def is_computed(self) -> bool:
        return self._make is None
