"""The order of tests under pytest-xdist: it hands them to its workers in sequence."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count, filterfalse, zip_longest
from typing import Any

import pytest

from packproof.properties.laws.catalogue import PROPERTIES


def interleaved(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Order the tests so that concurrent workers get different kernels, dtypes and properties.

    No kernel is then compiled twice at once. Properties differ because a GPU runs one `size` test at a time.
    """
    kernels = _grouped(items, lambda item: item.nodeid.partition("[")[0])
    place = count()
    return _round_robin([_round_robin([_rotated(c, next(place)) for c in _grouped(k, _dtypes)]) for k in kernels])


def _dtypes(item: pytest.Item) -> Any:
    return _requested(item, "dtypes")


def _quick(item: pytest.Item) -> bool:
    return any(getattr(PROPERTIES.get(law, law), "quick", False) for law in _requested(item, "properties") or ())


def _requested(item: Any, field: str) -> Any:
    """A field of the request of the test's `proof`; None in a test without one."""
    return getattr(item.callspec.params["proof"], field) if hasattr(item, "callspec") else None


def _rotated(tests: list[pytest.Item], place: int) -> list[pytest.Item]:
    """The tests rotated by pairs, by a different amount for each rotation; quick ones last, so the run ends evenly."""
    quick, others = list(filter(_quick, tests)), list(filterfalse(_quick, tests))
    at = 2 * place % max(1, len(others))
    return others[at:] + others[:at] + quick


def _round_robin(groups: Iterable[list[pytest.Item]]) -> list[pytest.Item]:
    """Two tests of each group, group after group: xdist gives a worker two to begin with."""
    pairs = [[group[at : at + 2] for at in range(0, len(group), 2)] for group in groups]
    return [test for step in zip_longest(*pairs, fillvalue=[]) for pair in step for test in pair]


def _grouped(items: Iterable[pytest.Item], key: Callable[[Any], Any]) -> list[list[pytest.Item]]:
    found: dict[object, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())
