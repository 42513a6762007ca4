"""Explanations of surviving mutants: `equivalents.json`, keyed by the changed line, and so unaffected by moved code.

An entry has "function" (module:function), "changes" (a line before and after, as "was -> now") and "reason". Where a
function has the same line several times, "#2 was -> now" is the second from the top, and "was -> now" all of them.
A mutant with "beyond": true is incorrect, but only tiles or sizes other than the interpreter's would show it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packproof.proof.mutants.mutant import Mutant, all_mutants

FILE = Path(__file__).with_name("equivalents.json")


def entries(file: Path = FILE) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return records


@dataclass(frozen=True)
class Explanation:
    """Why no check kills a mutant."""

    reason: str
    out_of_reach: bool
    """Whether it is incorrect, out of reach of the interpreter's tiles and sizes; False for an equivalent mutant."""


def find_explanations(mutants: Iterable[Mutant]) -> dict[str, Explanation]:
    """The explanations of mutants, by id; mutants without one are left out."""
    return match_explanations(mutants, entries(), claim_keys())


def match_explanations(
    mutants: Iterable[Mutant], records: Iterable[Mapping[str, Any]], names: Mapping[str, tuple[tuple[str, str], ...]]
) -> dict[str, Explanation]:
    """The explanations of mutants among the entries of a file, by id. names: `claim_keys_of` all mutants."""
    by_change = {
        (e["function"], change): Explanation(e["reason"], e.get("beyond", False))
        for e in records
        for change in e["changes"]
    }
    ids = {m.id for m in mutants}
    matches = {name: next((by_change[c] for c in names[name] if c in by_change), None) for name in ids & names.keys()}
    return {name: explanation for name, explanation in matches.items() if explanation}


@cache
def claim_keys() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """`claim_keys_of` the mutants of all Triton kernels."""
    return claim_keys_of(all_mutants())


def claim_keys_of(mutants: Iterable[Mutant]) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """By id, the two keys of a mutant in the file: its function with the numbered change, and with the change."""
    count: Counter[tuple[str, str]] = Counter()
    keys = {}
    for m in mutants:
        function, change = f"{m.module}:{m.function}", " -> ".join(m.change)
        count[function, change] += 1
        keys[m.id] = (function, f"#{count[function, change]} {change}"), (function, change)
    return keys
