"""Frozen dataclasses as JSON values and back, checked against their annotations: the reports of packproof's processes.

A dataclass is an object with its class name under "is". A value that does not fit its annotation is a RecordError:
nothing is converted, nothing is imported, no field is left out or added.
"""

import dataclasses
from collections.abc import Mapping, Set
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from packproof.refs.errors import PackproofError

_NAME = "is"
_FILE_KEYS: Mapping[str, Mapping[str, str]] = {  # class -> field -> key in files
    "BoardPeer": {"judged_on": "where"},
    "BoardRow": {"unpromised": "beyond"},
    "Decile": {"fixed_work": "beside"},
    "MeasuredRow": {"single_rank_ms": "one", "all_ranks_ms": "all"},
    "MutantOutcome": {"killed_by": "by"},
    "Row": {"single_rank_ms": "one", "all_ranks_ms": "all"},
    "Speed": {"name": "what", "clock": "of"},
}
"""Fields of files with another key, so that files of earlier versions are read."""
_SCALARS = (str, int, float, bool, NoneType)

T = TypeVar("T")


class RecordError(PackproofError):
    """A JSON value that does not fit its annotation."""


def to_json(value: Any) -> Any:
    """A JSON value for a dataclass of scalars, tuples, sets, mappings with str keys, and such dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_NAME: type(value).__name__, **to_row(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(map(to_json, value))
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if not isinstance(value, _SCALARS):
        raise TypeError(f"{type(value).__name__} is not a record")
    return value


def to_row(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values, by their keys in files."""
    return {key: to_json(getattr(value, name)) for name, key in _keys(type(value)).items()}


def from_row(kind: type[T], row: Mapping[str, Any]) -> T:
    """The dataclass with these fields, by their keys in files. Raises TypeError for other keys."""
    names = {key: name for name, key in _keys(kind).items()}
    return kind(**{names.get(key, key): value for key, value in row.items()})


def from_json(kind: Any, data: Any) -> Any:
    """Convert `data`, as written by `to_json`, back to a value of this type. Raises RecordError if it does not fit."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union_from_json(arguments, data)
    if origin is Literal:
        if data in arguments:
            return data
    elif dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, data)  # type: ignore[arg-type]
    elif origin in (tuple, frozenset):
        if isinstance(data, list | tuple):
            return _items_from_json(origin, arguments, data)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(data, dict):
            return {from_json(arguments[0], key): from_json(arguments[1], item) for key, item in data.items()}
    elif kind is Any or type(data) is kind or (kind is float and type(data) is int):
        return data
    raise RecordError(f"{str(data)[:60]!r} is not a {getattr(kind, '__name__', kind)}")


def _union_from_json(kinds: tuple[Any, ...], data: Any) -> Any:
    if isinstance(data, dict):
        matching_kinds = [kind for kind in kinds if getattr(kind, "__name__", "") == data.get(_NAME)]
        kinds = tuple(matching_kinds) or kinds
    for kind in kinds[:-1]:
        try:
            return from_json(kind, data)
        except RecordError:
            continue
    return from_json(kinds[-1], data)


def _items_from_json(origin: Any, kinds: tuple[Any, ...], data: Any) -> Any:
    if kinds[1:] == (...,) or origin is frozenset:
        return origin(from_json(kinds[0], item) for item in data)
    if len(kinds) != len(data):
        raise RecordError(f"{len(data)} items, expected {len(kinds)}")
    return tuple(from_json(kind, item) for kind, item in zip(kinds, data, strict=True))


def _dataclass_from_json(kind: type[T], data: Any) -> T:
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    keys = _keys(kind)
    if not isinstance(data, dict) or data.keys() != {_NAME, *keys.values()} or data[_NAME] != kind.__name__:
        raise RecordError(f"{str(data)[:60]!r} is not a {kind.__name__}")
    return kind(**{name: from_json(hint, data[keys[name]]) for name, hint in hints.items()})


def _keys(kind: Any) -> dict[str, str]:
    """The key of each field in files."""
    renamed = _FILE_KEYS.get(kind.__name__, {})
    return {f.name: renamed.get(f.name, f.name) for f in dataclasses.fields(kind)}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}
