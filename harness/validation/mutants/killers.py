"""The killer of each mutant, the check that detected it in the last run. The next run starts with it.

A file has a list of checks, and a row for each function and operator. At the ordinal of a mutant, the row has the index
of its killer in the list. A killer only sets the order: if it detects nothing, all other checks follow.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from packproof.harness.validation.mutants.outcome import MutantOutcome
from packproof.refs.errors import UsageError


class Killer(NamedTuple):
    """A check as an outcome names it."""

    op: str
    property: str
    case: str


def read_killers(file: Path) -> dict[str, Killer]:
    """The killers by mutant id, {} if the file does not exist yet. Raises UsageError for an invalid file."""
    if not file.exists():
        return {}
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        checks = [Killer(*check) for check in document["checks"]]
        return {
            f"{function}:{operator}:{ordinal}": checks[number]
            for function, operators in document["killers"].items()
            for operator, row in operators.items()
            for ordinal, number in enumerate(row)
            if number is not None
        }
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise UsageError(f"{file} is not a file of killers; `packproof mutate --killers` writes one") from None


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
