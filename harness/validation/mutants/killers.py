"""The check that convicted each mutant the last time: it comes first the next time, and most often that is all.

A file has them by check, with the ids of the mutants that it convicted. A witness is only an order: a mutant that it
does not convict is judged by all the other checks too.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from packproof.harness.validation.mutants.outcome import MutantOutcome
from packproof.refs.errors import UsageError


class Witness(NamedTuple):
    """A check by its words: an outcome has the same."""

    op: str
    property: str
    case: str


def read(file: Path) -> dict[str, Witness]:
    """By id of the mutant; none where there is no file yet. UsageError where it is another kind of file."""
    if not file.exists():
        return {}
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["witnesses"]
        return {name: Witness(r["op"], r["property"], r["case"]) for r in rows for name in r["mutants"]}
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{file} is no file of witnesses; `packproof mutate --witnesses` writes one") from None


def text(known: Mapping[str, Witness], outcomes: Iterable[MutantOutcome]) -> str:
    """The file with what a run has found: what is known of other mutants stays."""
    found = dict(known)
    for o in outcomes:
        found.pop(o.id, None)
        if o.by:
            found[o.id] = Witness(o.op, o.property, o.case)
    mutants: dict[Witness, list[str]] = {}
    for name, witness in sorted(found.items()):
        mutants.setdefault(witness, []).append(name)
    rows = [w._asdict() | {"mutants": names} for w, names in sorted(mutants.items())]
    return json.dumps({"version": 1, "witnesses": rows}, indent=0) + "\n"
