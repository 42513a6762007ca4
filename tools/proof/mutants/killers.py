"""The killer of each mutant, the check that detected it in the last run. The next run starts with it.

A file has a list of checks, and a row for each function and operator. At the ordinal of a mutant, the row has the index
of its killer in the list. A killer only sets the order: if it detects nothing, all other checks follow.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packproof.base.files import damaged_error
from packproof.base.records import read_record
from packproof.proof.mutants.outcome import MutantOutcome

WRITER = "`packproof mutate --killers`"


class Killer(NamedTuple):
    """A check as an outcome names it."""

    op: str
    property: str
    case: str


@dataclass(frozen=True)
class KillersDocument:
    """The content of a file."""

    version: int
    checks: tuple[tuple[str, str, str], ...]
    """The op, property and case of each check."""
    killers: Mapping[str, Mapping[str, tuple[int | None, ...]]]
    """By function and operator, the index of each mutant's check."""


def read_killers(file: Path) -> dict[str, Killer]:
    """The killers by mutant id, {} if the file does not exist yet. Raises UsageError for an invalid file."""
    if not file.exists():
        return {}
    document = read_record(KillersDocument, file, str(file), WRITER)
    check_by_index = {index: Killer(*check) for index, check in enumerate(document.checks)}
    try:
        return {
            f"{function}:{operator}:{ordinal}": check_by_index[index]
            for function, operators in document.killers.items()
            for operator, row in operators.items()
            for ordinal, index in enumerate(row)
            if index is not None
        }
    except KeyError as error:
        raise damaged_error(file, f"there is no check {error}", WRITER) from None


def killers_text(previous: Mapping[str, Killer], outcomes: Iterable[MutantOutcome], ids: Collection[str]) -> str:
    """The text of the file after a run.

    previous: the killers before the run, kept for mutants outside of it.
    ids: of all existing mutants.
    """
    killers = {name: killer for name, killer in previous.items() if name in ids}
    for o in outcomes:
        killers.pop(o.id, None)
        if o.killed_by:
            killers[o.id] = Killer(o.op, o.property, o.case)
    checks = sorted(set(killers.values()))
    number = {killer: k for k, killer in enumerate(checks)}
    rows: dict[str, dict[str, list[int | None]]] = {}
    for name, killer in sorted(killers.items()):
        function, operator, ordinal = name.rsplit(":", 2)
        row = rows.setdefault(function, {}).setdefault(operator, [])
        row += [None] * (int(ordinal) + 1 - len(row))
        row[int(ordinal)] = number[killer]
    checks_text = ",\n".join(json.dumps(check) for check in checks)
    rows_text = ",\n".join(f"{json.dumps(function)}: {_compact(row)}" for function, row in rows.items())
    return f'{{\n"version": 2,\n"checks": [\n{checks_text}\n],\n"killers": {{\n{rows_text}\n}}\n}}\n'


def _compact(row: Mapping[str, list[int | None]]) -> str:
    return json.dumps(row, separators=(",", ":"))
