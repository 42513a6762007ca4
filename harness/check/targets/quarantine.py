"""Calls and properties that are not launched: they are known to hang or fault the device. Each entry names an issue.

[[quarantine]]
target = "attend.py:attend"
domain = "length > 0"
device = "cuda"
reason = "an empty sequence hangs the GPU"
issue = "https://example.org/attend/issues/12"
"""

import builtins
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.names import DEVICES, EVERY_DTYPE, did_you_mean, long_dtype, require_known, short_dtype
from packproof.harness.report import Cell
from packproof.properties.cases import Domain
from packproof.properties.contracts import Term

TABLE = "quarantine"
_EXAMPLE = f'[[{TABLE}]] with target = "my_kernels:attend", domain = "length > 0", reason = "...", issue = "#12"'
_ISSUE = re.compile(r"\S*\d\S*")


@dataclass(frozen=True)
class Quarantine:
    """What is not launched of one kernel: calls outside of a domain, or a property."""

    target: str
    """The kernel, as reports name it."""
    reason: str
    """What happens, for readers of the report."""
    issue: str
    """Where it is tracked."""
    domain: str = ""
    """The condition on calls that are launched; "" for an entry of a property."""
    property: str = ""
    """The property that is not asked; "" for an entry of a domain."""
    dtype: str = ""
    """The long name of the dtype of the property, "" for every dtype."""
    device: str = ""
    """The device, "" for every device."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Quarantine":
        """One entry of the file. Raises UsageError for an unknown or missing key, or an invalid value."""
        require_texts(table, fields(cls), _EXAMPLE)
        if ("domain" in table) == ("property" in table) or ("dtype" in table and "property" not in table):
            raise UsageError(f"it has {', '.join(table)}; expected a domain, or a property with or without a dtype")
        if not _ISSUE.fullmatch(table["issue"]):
            raise UsageError(f"issue is {table['issue']!r}; expected a number, owner/repository#12 or an address")
        if "device" in table:
            require_known("device", table["device"], DEVICES)
        Domain.of(table.get("domain", ()))
        dtype = table.get("dtype", "")
        return cls(**{**table, "dtype": dtype if dtype in ("", EVERY_DTYPE) else long_dtype(dtype)})

    def is_of(self, target: str, device: str) -> bool:
        """Whether it is an entry of this kernel on this device."""
        return self.device in ("", device) and location_key(self.target) == location_key(target)

    def holds_back(self, cell: Cell) -> bool:
        """Whether the cell is not run."""
        same_cell = self.property in (cell.law, cell.property) and self.dtype in ("", cell.dtype)
        return bool(self.property) and same_cell and self.is_of(cell.target, cell.device)

    @builtins.property
    def text(self) -> str:
        """Why, and where it is tracked."""
        return f"quarantined, not launched: {self.reason} ({self.issue})"


def launched_domain(entries: Iterable[Quarantine]) -> Domain:
    """The calls that are launched, whatever the kernel declares."""
    return Domain.of([entry.domain for entry in entries if entry.domain])


def quarantine_terms(entries: Iterable[Quarantine]) -> Iterator[Term]:
    """The entries of a kernel as terms, for the line of the verdict."""
    for entry in entries:
        if entry.domain:
            yield Term("domain", f"{entry.domain} by quarantine ({entry.issue})", "kernel")
        else:
            dtype = f" in {short_dtype(entry.dtype)}" if entry.dtype else ""
            yield Term("properties", f"no {entry.property}{dtype} by quarantine ({entry.issue})", "kernel")


def require_texts(table: Mapping[str, Any], entry_fields: Iterable[Field[Any]], example: str) -> None:
    """Raises UsageError unless a table has texts only, for fields that there are and for all without a default."""
    keys = {field.name: field.default is MISSING for field in entry_fields}
    for key, value in table.items():
        if key not in keys:
            raise UsageError(f"{key!r} is not a key; {did_you_mean(key, keys)}there are: {', '.join(keys)}")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{key} is {value!r}; expected text in quotes")
    if missing := [key for key, is_required in keys.items() if is_required and key not in table]:
        raise UsageError(f"it has no {' and no '.join(missing)}; expected {example}")


def location_key(target: str) -> tuple[str, str]:
    """A key for a kernel's location: equal for two spellings of one path, and for a file and its module."""
    source, _, function = target.rpartition(":")
    file = source if source.endswith(".py") else f"{source.replace('.', os.sep)}.py"
    return (os.path.realpath(file) if os.path.isfile(file) or file == source else source), function
