"""Wrong calls of the public API. Each is refused by packproof, in words that name the argument and the way out."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pytest

from packproof import CheckFailed, PackproofError


class Wrong(NamedTuple):
    """A wrong call, and the words that its error must have: the argument, what came, what was expected."""

    call: Callable[[], object]
    says: tuple[str, ...]


def assert_refused(wrong: Wrong) -> None:
    """The call raises packproof's own error with those words: no raw error, no silent pass, no verdict on a kernel."""
    with pytest.raises(PackproofError) as caught:
        wrong.call()
    assert not isinstance(caught.value, CheckFailed), f"the kernel was blamed: {caught.value}"
    message = str(caught.value)
    missing = [word for word in wrong.says if word not in message]
    assert not missing, f"{missing} not in {message!r}"


def by_call(table: Mapping[str, Wrong]) -> dict[str, dict[str, Wrong]]:
    """The wrong calls of each function: what comes before the colon of their names."""
    tables: dict[str, dict[str, Wrong]] = {}
    for name, wrong in table.items():
        tables.setdefault(name.partition(":")[0] if ":" in name else "others", {})[name] = wrong
    return tables


def assert_all_refused(table: Mapping[str, Wrong]) -> None:
    """As `assert_refused`; names every wrong call that is not: they are too many for a test each."""
    faults = dict(_faults(table))
    assert not faults, "\n".join(f"{name}: {fault}" for name, fault in faults.items())


def _faults(table: Mapping[str, Wrong]) -> Iterable[tuple[str, str]]:
    for name, wrong in table.items():
        try:
            assert_refused(wrong)
        except (Exception, pytest.fail.Exception) as fault:
            yield name, f"{type(fault).__name__}: {fault}"
