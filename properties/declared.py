"""Checks of declarations. An invalid value raises UsageError at the declaration, not during a check."""

from collections.abc import Iterable, Mapping
from typing import Any

from packproof.properties.cases.case import SHORT
from packproof.refs.errors import UsageError

_LONG = {short: long for long, short in SHORT.items()}


def require(holds: bool, where: str, name: str, value: object, expected: str) -> None:
    """Raises UsageError unless the condition holds.

    context: the place of the declaration, such as "adapt(conv)"; it begins the text.
    name: the argument.
    value: its value.
    expected: a description of valid values.
    """
    if not holds:
        raise UsageError(f"{where}: {name} is {value!r}, expected {expected}")


def require_switch(where: str, name: str, value: object) -> None:
    require(isinstance(value, bool), where, name, value, "True or False")


def require_names(where: str, name: str, value: Any, known: Iterable[str], expected: str) -> None:
    """Raises UsageError unless the value is a collection of valid names. A string is none."""
    names = list(known)
    listed = f"names of {expected}: {', '.join(names) or 'there are none'}"
    require(isinstance(value, Iterable) and not isinstance(value, str), where, name, value, listed)
    for entry in value:
        if entry not in names:
            raise UsageError(f"{where}: {name} has {entry!r}, expected {listed}")


def require_mapping(where: str, name: str, value: object, expected: str) -> None:
    is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    require(is_mapping, where, name, value, f"a dict {expected}")


def long_dtypes(where: str, value: Any) -> list[str]:
    """Dtypes by long names. Raises UsageError unless the value is a non-empty list of long or short names."""
    expected = f"a list of {', '.join(_LONG)}"
    is_list = isinstance(value, Iterable) and not isinstance(value, str) and bool(value)
    require(is_list, where, "dtypes", value, expected)
    for entry in value:
        if entry not in SHORT and entry not in _LONG:
            raise UsageError(f"{where}: dtypes has {entry!r}, expected {expected}")
    return [_LONG.get(entry, entry) for entry in value]


def texts(where: str, name: str, value: Any, example: str) -> list[str]:
    """The value as a list of strings. Raises UsageError for anything else, such as a single string."""
    require(isinstance(value, Iterable) and not isinstance(value, str), where, name, value, f"a list: {example}")
    for entry in value:
        if not isinstance(entry, str):
            raise UsageError(f"{where}: {name} has {entry!r}, expected strings: {example}")
    return list(value)


def fixed_values(where: str, value: Any) -> dict[str, Any]:
    """Option values by name, with lists as tuples. Raises UsageError unless it is a dict of plain values."""
    expected = "a dict of plain values by option, such as {'causal': True}"
    require(value is None or isinstance(value, Mapping), where, "fixed", value, expected)
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in (value or {}).items()}
    for name, x in values.items():
        parts = x if isinstance(x, tuple) else (x,)
        plain = isinstance(name, str) and all(isinstance(part, str | int | float | None) for part in parts)
        require(plain, where, "fixed", value, expected)
    return values
