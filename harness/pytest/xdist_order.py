"""The order of tests under pytest-xdist: it hands them to its workers in sequence."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count, filterfalse, zip_longest
from typing import Any

import pytest

from packproof.properties.laws import PROPERTIES


def interleave_tests(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Order the tests so that concurrent workers get different kernels, dtypes and properties.

    No kernel is then compiled twice at once. Properties differ because a GPU runs one `size` test at a time.
    """
    kernels = _group_tests(items, lambda item: item.nodeid.partition("[")[0])
    counter = count()
    return _round_robin(
        [_round_robin([_rotate_tests(c, next(counter)) for c in _group_tests(k, _dtypes)]) for k in kernels]
    )


def _dtypes(item: pytest.Item) -> Any:
    return _request_field(item, "dtypes")


def _is_quick(item: pytest.Item) -> bool:
    return any(getattr(PROPERTIES.get(law, law), "quick", False) for law in _request_field(item, "properties") or ())


def _request_field(item: Any, field: str) -> Any:
    """A field of the request of the test's `proof`; None in a test without one."""
    return getattr(item.callspec.params["proof"], field) if hasattr(item, "callspec") else None


def _rotate_tests(tests: list[pytest.Item], rotation: int) -> list[pytest.Item]:
    """The tests rotated by pairs, by a different amount for each rotation; quick ones last, so the run ends evenly."""
    quick, slow_tests = list(filter(_is_quick, tests)), list(filterfalse(_is_quick, tests))
    start = 2 * rotation % max(1, len(slow_tests))
    return slow_tests[start:] + slow_tests[:start] + quick


def _round_robin(groups: Iterable[list[pytest.Item]]) -> list[pytest.Item]:
    """Two tests of each group, group after group: xdist gives a worker two to begin with."""
    pairs = [[group[index : index + 2] for index in range(0, len(group), 2)] for group in groups]
    return [test for step in zip_longest(*pairs, fillvalue=[]) for pair in step for test in pair]


def _group_tests(items: Iterable[pytest.Item], key: Callable[[Any], Any]) -> list[list[pytest.Item]]:
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
