"""The order in which the tests of a suite are dealt to workers of pytest-xdist, which takes them as they come."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count, filterfalse, zip_longest
from typing import Any

import pytest

from packproof.properties.catalogue import PROPERTIES


def dealt(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests so that workers side by side have different kernels and dtypes, which each would else compile for
    itself, and different properties: of `size` one at a time runs on a GPU.
    """
    kernels = _grouped(items, lambda item: item.nodeid.partition("[")[0])
    place = count()
    return _in_turns([_in_turns([_turned(c, next(place)) for c in _grouped(k, _dtypes)]) for k in kernels])


def _dtypes(item: pytest.Item) -> Any:
    return _asked(item, "dtypes")


def _quick(item: pytest.Item) -> bool:
    return any(getattr(PROPERTIES.get(law, law), "quick", False) for law in _asked(item, "properties") or ())


def _asked(item: Any, field: str) -> Any:
    """What `proof` is asked there; None in a test that was given none."""
    return getattr(item.callspec.params["proof"], field) if hasattr(item, "callspec") else None


def _turned(tests: list[pytest.Item], place: int) -> list[pytest.Item]:
    """Begun at another pair for each place and taken all round; the quick ones last, as a run waits for its last."""
    quick, others = list(filter(_quick, tests)), list(filterfalse(_quick, tests))
    at = 2 * place % max(1, len(others))
    return others[at:] + others[:at] + quick


def _in_turns(groups: Iterable[list[pytest.Item]]) -> list[pytest.Item]:
    """Two of each group after the other, as many as xdist gives a worker to begin with."""
    pairs = [[group[at : at + 2] for at in range(0, len(group), 2)] for group in groups]
    return [test for turn in zip_longest(*pairs, fillvalue=[]) for pair in turn for test in pair]


def _grouped(items: Iterable[pytest.Item], key: Callable[[Any], Any]) -> list[list[pytest.Item]]:
    found: dict[object, list[pytest.Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())
