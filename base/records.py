"""Frozen dataclasses as JSON values and back, checked against their annotations: files, and reports of processes.

In the reports of processes (`to_json`, `from_json`) a dataclass is an object with its class name under "is". In files
(`to_row`, `from_row`) it has no name, and a field with a default may be absent, as in files of earlier versions.
A value that does not fit its annotation is a RecordError: nothing is converted, nothing is imported.
"""

import dataclasses
import json
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from packproof.base.errors import PackproofError
from packproof.base.files import damaged_error, read_json

_NAME = "is"
_FILE_KEYS: Mapping[str, Mapping[str, str]] = {  # class -> field -> key in files
    "BoardPeer": {"judged_on": "where"},
    "BoardRow": {"unpromised": "beyond"},
    "Decile": {"fixed_work": "beside"},
    "MutantOutcome": {"killed_by": "by"},
    "Row": {"single_rank_ms": "one", "all_ranks_ms": "all"},
    "Speed": {"name": "what", "clock": "of"},
    "TimedRow": {"pass_name": "pass"},
}
"""Fields of files with another key, so that files of earlier versions are read. Subclasses have the same keys."""
_SCALARS = (str, int, float, bool, NoneType)
_MOST_SHOWN = 40  # characters of a value in an error

T = TypeVar("T")


class RecordError(PackproofError):
    """A JSON value that does not fit its annotation. Its text has the path of the value: `rows[3].tokens`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.removeprefix('.') or 'the record'} {problem}")
        self._problem, self._path = problem, path

    def inside(self, step: str) -> "RecordError":
        """The same error, seen from the object or list around the value."""
        return RecordError(self._problem, step + self._path)


def to_json(value: Any) -> Any:
    """A JSON value for a dataclass of scalars, tuples, sets, mappings with str keys, and such dataclasses."""
    return _REPORTS.encode(value)


def to_row(value: Any) -> Any:
    """The fields of a dataclass as JSON values, by their keys in files; rows for dataclasses inside it."""
    return _FILES.encode(value)


def from_json(kind: Any, data: Any) -> Any:
    """Convert `data`, as written by `to_json`, back to a value of this type. Raises RecordError if it does not fit."""
    return _REPORTS.decode(kind, data)


def from_row(kind: type[T], row: Any) -> T:
    """The dataclass with these fields, as written by `to_row`. Raises RecordError if they do not fit."""
    record: T = _FILES.decode(kind, row)
    return record


def read_record(kind: type[T], path: str | Path, label: str, writer: str, *, named: bool = False) -> T:
    """The dataclass in a file. Raises UsageError if it cannot be read or is damaged.

    label: the name of the file in messages.
    writer: the command that writes such files.
    named: whether it writes them by `to_json`, not by `to_row`.
    """
    return parse_record(kind, read_json(path, label, writer), label, writer, named=named)


def parse_record(kind: type[T], data: Any, label: str, writer: str, *, named: bool = False) -> T:
    """The dataclass in the data of a file. Raises UsageError if they do not fit."""
    try:
        record: T = (_REPORTS if named else _FILES).decode(kind, data)
    except (RecordError, RecursionError) as error:
        raise damaged_error(label, str(error), writer) from None
    return record


@dataclasses.dataclass(frozen=True)
class RecordForm:
    """One of the two forms of JSON. A subclass may have further kinds of values."""

    named: bool
    """Whether an object has its class name."""

    def encode(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            name = {_NAME: type(value).__name__} if self.named else {}
            return name | {key: self.encode(getattr(value, field)) for field, key in _keys(type(value)).items()}
        if isinstance(value, Mapping):
            return {str(key): self.encode(item) for key, item in value.items()}
        if isinstance(value, Set):
            return sorted(map(self.encode, value))
        if isinstance(value, list | tuple):
            return [self.encode(item) for item in value]
        if not isinstance(value, _SCALARS):
            raise TypeError(f"{type(value).__name__} is not a record")
        return value

    def decode(self, kind: Any, data: Any) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return self._decode_union(arguments, data)
        if origin is Literal:
            if data in arguments:
                return data
        elif dataclasses.is_dataclass(kind):
            return self._decode_dataclass(kind, data)
        elif origin in (tuple, frozenset):
            if isinstance(data, list | tuple):
                return self._decode_items(origin, arguments, data)
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            if isinstance(data, dict):
                return {self.decode(arguments[0], key): self._decode_at(arguments[1], data, key) for key in data}
        elif kind is Any or type(data) is kind or (kind is float and type(data) is int):
            return data
        raise _misfit(kind, data)

    def _decode_at(self, kind: Any, container: Any, key: str | int) -> Any:
        """The item at a key of an object or an index of a list."""
        try:
            return self.decode(kind, container[key])
        except RecordError as error:
            raise error.inside(f"[{key}]" if isinstance(key, int) else f".{key}") from None

    def _decode_union(self, kinds: tuple[Any, ...], data: Any) -> Any:
        if isinstance(data, dict):
            matching_kinds = [kind for kind in kinds if getattr(kind, "__name__", "") == data.get(_NAME)]
            kinds = tuple(matching_kinds) or kinds
        if data is not None:  # otherwise the error of None would hide the one that says more
            kinds = tuple(kind for kind in kinds if kind is not NoneType) or kinds
        for kind in kinds[:-1]:
            try:
                return self.decode(kind, data)
            except RecordError:
                continue
        return self.decode(kinds[-1], data)

    def _decode_items(self, origin: Any, kinds: tuple[Any, ...], data: Any) -> Any:
        if kinds[1:] == (...,) or origin is frozenset:
            return origin(self._decode_at(kinds[0], data, index) for index in range(len(data)))
        if len(kinds) != len(data):
            raise RecordError(f"has {len(data)} items, expected {len(kinds)}")
        return tuple(self._decode_at(kind, data, index) for index, kind in enumerate(kinds))

    def _decode_dataclass(self, kind: Any, data: Any) -> Any:
        if not isinstance(data, dict) or (self.named and data.get(_NAME) != kind.__name__):
            raise _misfit(kind, data)
        keys, optional_keys = _keys(kind), set[str]() if self.named else _keys_with_default(kind)
        for key in keys.values():
            if key not in data and key not in optional_keys:
                raise RecordError(f"has no {key}")
        for key in data.keys() - keys.values() - ({_NAME} if self.named else set()):
            raise RecordError(f"has {key[:_MOST_SHOWN]!r}, which is unknown")
        hints = _hints(kind)
        return kind(**{name: self._decode_at(hints[name], data, key) for name, key in keys.items() if key in data})


_REPORTS, _FILES = RecordForm(named=True), RecordForm(named=False)


def _misfit(kind: Any, data: Any) -> RecordError:
    is_literal = get_origin(kind) is Literal
    expected = " or ".join(map(repr, get_args(kind))) if is_literal else getattr(kind, "__name__", kind)
    return RecordError(f"is {json.dumps(data, default=repr)[:_MOST_SHOWN]}, expected {expected}")


@cache
def _keys(kind: Any) -> Mapping[str, str]:
    """The key of each field in files."""
    renamed = {name: key for base in kind.__mro__ for name, key in _FILE_KEYS.get(base.__name__, {}).items()}
    return {field.name: renamed.get(field.name, field.name) for field in dataclasses.fields(kind)}


@cache
def _keys_with_default(kind: Any) -> Set[str]:
    keys, missing = _keys(kind), dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {keys[f.name] for f in fields if f.default is not missing or f.default_factory is not missing}


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
