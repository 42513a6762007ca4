"""The cache of a kernel's runs: several properties need the same samples, results and answers of the oracle."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from packproof.properties.bounds.oracle import OracleAnswer
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample

T = TypeVar("T")
_MAX_ENTRIES = 256  # of each store; cells take turns at the same cases, so the latest are enough


class Store(Generic[T]):
    """Values by key, at most `_MAX_ENTRIES`: the least recently used is discarded."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key. The function makes it the first time."""
        if key not in self._values:
            self._values[key] = make()
            while len(self._values) > _MAX_ENTRIES:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]

    def clear(self) -> None:
        self._values.clear()


@dataclass(frozen=True)
class RunCache:
    """What was computed for one kernel. Its copies with other promises, or without gradients, use the same cache.

    A key names everything that differs between these copies.
    """

    samples: Store[Sample] = field(default_factory=Store)
    """By case."""
    answers: Store[OracleAnswer] = field(default_factory=Store)
    """The oracle's answers, by sample, gradients and the promises that decide on a budget."""
    results: Store[Tensors] = field(default_factory=Store)
    """Results of plain calls, by sample, configuration and gradients."""
    reruns: Store[Tensors] = field(default_factory=Store)
    """Results of second runs, by case and gradients."""

    def without_results(self) -> "RunCache":
        """A cache for another runner or convention: with the same samples and answers, without results."""
        return replace(self, results=Store(), reruns=Store())

    def discard_results(self) -> None:
        """Discard the results of the kernel, as for another kernel. The oracle's answers are kept."""
        self.results.clear()
        self.reruns.clear()
