"""Checks of declarations. An invalid value raises UsageError at the declaration, not during a check."""

from collections.abc import Iterable, Mapping
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.names import LONG_DTYPES, SHORT_DTYPES, is_dtype_like


def require(condition: bool, context: str, name: str, value: object, expected: str) -> None:
    """Raises UsageError unless the condition holds.

    context: the place of the declaration, such as "adapt(conv)"; it begins the text.
    name: the argument.
    value: its value.
    expected: a description of valid values.
    """
    if not condition:
        raise UsageError(f"{context}: {name} is {value!r}, expected {expected}")


def require_bool(context: str, name: str, value: object) -> None:
    require(isinstance(value, bool), context, name, value, "True or False")


def require_names(context: str, name: str, value: Any, valid_names: Iterable[str], expected: str) -> None:
    """Raises UsageError unless the value is a collection of valid names. A string is none."""
    name_list = list(valid_names)
    expected_text = f"names of {expected}: {', '.join(name_list) or 'there are none'}"
    require(isinstance(value, Iterable) and not isinstance(value, str), context, name, value, expected_text)
    for entry in value:
        if entry not in name_list:
            raise UsageError(f"{context}: {name} has {entry!r}, expected {expected_text}")


def require_mapping(context: str, name: str, value: object, expected: str) -> None:
    is_mapping = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    require(is_mapping, context, name, value, f"a dict {expected}")


def long_dtypes(context: str, value: Any) -> list[str]:
    """Dtypes by long names. Raises UsageError unless the value is a non-empty list of names, or of torch's dtypes."""
    expected = f"a list of {', '.join(LONG_DTYPES)}"
    is_list = isinstance(value, Iterable) and not isinstance(value, str) and bool(value)
    require(is_list, context, "dtypes", value, expected)
    names = {str(entry).removeprefix("torch."): entry for entry in value}
    for name, entry in names.items():
        if not is_dtype_like(entry) or (name not in SHORT_DTYPES and name not in LONG_DTYPES):
            raise UsageError(f"{context}: dtypes has {entry!r}, expected {expected}")
    return [LONG_DTYPES.get(name, name) for name in names]


def string_list(context: str, name: str, value: Any, example: str) -> list[str]:
    """The value as a list of strings. Raises UsageError for anything else, such as a single string."""
    require(isinstance(value, Iterable) and not isinstance(value, str), context, name, value, f"a list: {example}")
    for entry in value:
        if not isinstance(entry, str):
            raise UsageError(f"{context}: {name} has {entry!r}, expected strings: {example}")
    return list(value)


def fixed_values(context: str, value: Any) -> dict[str, Any]:
    """Option values by name, with lists as tuples. Raises UsageError unless it is a dict of plain values."""
    expected = "a dict of plain values by option, such as {'causal': True}"
    require(value is None or isinstance(value, Mapping), context, "fixed", value, expected)
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in (value or {}).items()}
    for name, x in values.items():
        parts = x if isinstance(x, tuple) else (x,)
        is_plain = isinstance(name, str) and all(isinstance(part, str | int | float | None) for part in parts)
        require(is_plain, context, "fixed", value, expected)
    return values
