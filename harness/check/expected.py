"""The expected failures of a kernel: a file of its owner, and its effect on verdicts.

The file is TOML, and no more than data:

    [[expected_failure]]
    target = "delta.py:gated_delta_rule"
    property = "packing"
    dtype = "bf16"
    reason = "the state goes on into the next sequence, issue 12"
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from packproof.base.errors import FaultKind, UsageError
from packproof.base.files import read_bytes
from packproof.base.law_names import LAWS
from packproof.base.names import (
    COMPILE,
    DEVICES,
    EVERY_DTYPE,
    FINDINGS,
    TOOLS,
    long_dtype,
    require_known,
    short_dtype,
)
from packproof.base.wording import plural
from packproof.harness.check.targets.quarantine import TABLE as QUARANTINE
from packproof.harness.check.targets.quarantine import Quarantine, location_key, require_texts
from packproof.harness.report import Cell, Failure, Verdict

TABLE = "expected_failure"
E = TypeVar("E")
_MOST_BYTES = 1_000_000
_EXAMPLE = f'[[{TABLE}]] with target = "my_kernels:conv", property = "packing", dtype = "bf16", reason = "..."'


@dataclass(frozen=True)
class ExpectedFailure:
    """A cell with an expected failure."""

    target: str
    """The kernel, as reports name it."""
    property: str
    """The property, as reports name it."""
    dtype: str
    """The long name of the dtype."""
    reason: str
    """The reason, for readers of the report."""
    device: str = ""
    """The device of the failure, "" for every device."""
    tensor: str = ""
    """The only tensor expected to be wrong, as reports name it; "" for any."""
    fault: str = ""
    """How the call ends without a result (FaultKind), "" for a wrong result."""

    def matches(self, cell: Cell) -> bool:
        """Whether this entry is for the cell."""
        same_cell = (self.property, self.dtype) == (cell.law, cell.dtype) and self.device in ("", cell.device)
        return same_cell and location_key(self.target) == location_key(cell.target)

    def difference(self, failure: Failure) -> str:
        """The difference from the expected failure, in words; "" if there is none."""
        if failure.fault != self.fault:
            expected, actual = (
                f"fault {fault!r}" if fault else "a wrong result" for fault in (self.fault, failure.fault)
            )
            return f"{expected}, and this is {actual}"
        if self.tensor and failure.tensor != self.tensor:
            return f"a failure of {self.tensor}, and this is one of {failure.tensor or 'no tensor'}"
        return ""

    def __str__(self) -> str:
        return f"{self.target} {self.property} {short_dtype(self.dtype)}"


@dataclass(frozen=True)
class ExpectedFailures:
    """The expected failures of one file."""

    file: str = ""
    """The path of the file, "" without one."""
    entries: tuple[ExpectedFailure, ...] = ()
    """The entries, in the order of the file."""
    quarantined: tuple[Quarantine, ...] = ()
    """What is not launched, in the order of the file."""

    @classmethod
    def from_file(cls, path: str, properties: Sequence[str] = ()) -> "ExpectedFailures":
        """Read a TOML file. Raises UsageError for an unreadable file, or an entry with an unknown name.

        properties: the names of the user's own properties.
        """
        name = os.path.relpath(path)
        try:
            data = tomllib.loads(read_bytes(Path(name), _MOST_BYTES).decode())
        except UsageError as error:
            raise UsageError(f"expected failures: {error}") from None
        except OSError as error:
            raise UsageError(f"expected failures: {name}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # the second one: thousands of brackets
            raise UsageError(f"expected failures: {name} is not TOML: {error}; expected {_EXAMPLE}") from None
        tables, quarantines = data.get(TABLE, []), data.get(QUARANTINE, [])
        if data.keys() - {TABLE, QUARANTINE} or not (_are_tables(tables) and _are_tables(quarantines)):
            raise UsageError(
                f"expected failures: {name} has {', '.join(data)}; expected only {_EXAMPLE}, and [[{QUARANTINE}]]"
            )
        entries = _read_entries(tables, name, partial(_read_entry, properties=properties))
        quarantined = _read_entries(quarantines, name, partial(_read_quarantine, properties=properties), QUARANTINE)
        failures = cls(name, tuple(entries), tuple(quarantined))
        failures._require_distinct()
        return failures

    def apply(self, verdict: Verdict) -> Verdict:
        """The verdict after comparison with its entry: expected, stale, or unchanged without an entry."""
        entry = self._entry_of(verdict.cell)
        if entry is None or verdict.status == "error":
            return verdict
        location = f"entry {self.entries.index(entry) + 1} of {self.file}"
        if verdict.status == "inconclusive":
            return replace(verdict, reason=f"{verdict.reason}; the failure of {location} was not seen")
        if verdict.failure is None:
            outcome = "does not apply here" if verdict.status == "skipped" else "holds"
            lines = (f"it {outcome}, and was expected to fail: {entry.reason}", f"remove {location}")
            return replace(verdict, status="stale", failure=Failure((), "", lines, 0, 0))
        if difference := entry.difference(verdict.failure):
            report_lines = (*verdict.failure.lines, f"{location} expects {difference}")
            return replace(verdict, failure=replace(verdict.failure, lines=report_lines))
        return replace(verdict, status="expected", reason=f"expected: {entry.reason}")

    @cached_property
    def targets(self) -> dict[str, list[str]]:
        """The kernels of the entries, by the kind of entry, in the order of the file."""
        return {"entry": [e.target for e in self.entries], QUARANTINE: [e.target for e in self.quarantined]}

    def quarantine_of(self, target: str, device: str) -> tuple[Quarantine, ...]:
        """The entries of a kernel on a device."""
        return tuple(entry for entry in self.quarantined if entry.is_of(target, device))

    def notes(self, cells: Sequence[Cell]) -> tuple[str, ...]:
        """A note on the entries: the number used in a run of these cells, and the names of the others."""
        if not self.file or not (self.entries or not self.quarantined):
            return ()
        unused = [entry for entry in self.entries if not any(cell.counts and entry.matches(cell) for cell in cells)]
        used_text = f"{plural(len(self.entries) - len(unused), 'expected failure')} of {self.file}"
        return (f"{used_text}, not in this run: {', '.join(map(str, unused))}" if unused else used_text,)

    def _entry_of(self, cell: Cell) -> ExpectedFailure | None:
        return next((entry for entry in self.entries if entry.matches(cell)), None) if cell.counts else None

    def _require_distinct(self) -> None:
        for n, entry in enumerate(self.entries):
            for k, earlier in enumerate(self.entries[:n]):
                same = (entry.property, entry.dtype) == (earlier.property, earlier.dtype)
                if (
                    same
                    and location_key(entry.target) == location_key(earlier.target)
                    and _devices_overlap(entry.device, earlier.device)
                ):
                    raise UsageError(f"expected failures: {self.file}: entries {k + 1} and {n + 1} are both of {entry}")


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


def _read_entries(
    tables: Sequence[Mapping[str, Any]], file: str, read: Callable[[Mapping[str, Any]], E], kind: str = "entry"
) -> Iterator[E]:
    for n, table in enumerate(tables, start=1):
        try:
            yield read(table)
        except UsageError as error:
            raise UsageError(f"expected failures: {file}, {kind} {n}: {error}") from None


def _read_quarantine(table: Mapping[str, Any], properties: Sequence[str]) -> Quarantine:
    entry = Quarantine.from_table(table)
    if entry.property and entry.property not in properties:
        _require_property(entry.property)
    return entry


def _read_entry(table: Mapping[str, Any], properties: Sequence[str]) -> ExpectedFailure:
    """One entry, its names checked."""
    require_texts(table, fields(ExpectedFailure), _EXAMPLE)
    if table["property"] not in properties:
        _require_property(table["property"])
    if "device" in table:
        require_known("device", table["device"], DEVICES)
    if "fault" in table:
        require_known("fault", table["fault"], get_args(FaultKind))
    dtype_name = table["dtype"] if table["dtype"] == EVERY_DTYPE else long_dtype(table["dtype"])
    return ExpectedFailure(**{**table, "dtype": dtype_name})


def _require_property(name: str) -> None:
    """Raise UsageError unless a report could name a property so.

    An unpromised property has its label in brackets, as in "packing (same bits)". A user's own property has a colon.
    """
    law, _, label = name.partition(" (")
    if ":" in name:
        return
    require_known("property", law, [*LAWS, COMPILE, *FINDINGS, *TOOLS])
    if label:
        from packproof.properties.declarations import OF_KERNELS  # noqa: PLC0415  (torch)

        require_known("property", name, [f"{question.property} ({question.label})" for question in OF_KERNELS])


def _devices_overlap(device: str, other_device: str) -> bool:
    return not device or not other_device or device == other_device
