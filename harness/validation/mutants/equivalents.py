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

from packproof.harness.validation.mutants.mutant import Mutant, all_mutants

FILE = Path(__file__).with_name("equivalents.json")


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Explanation:
    """Why no check kills a mutant."""

    reason: str
    beyond: bool
    """Whether it is incorrect, out of reach of the interpreter's tiles and sizes; False for an equivalent mutant."""


def explained(mutants: Iterable[Mutant]) -> dict[str, Explanation]:
    """The explanations of mutants, by id; mutants without one are left out."""
    known = {
        (e["function"], change): Explanation(e["reason"], e.get("beyond", False))
        for e in entries()
        for change in e["changes"]
    }
    names, wanted = claims(), {m.id for m in mutants}
    found = {name: next((known[c] for c in names[name] if c in known), None) for name in wanted & names.keys()}
    return {name: explanation for name, explanation in found.items() if explanation}


@cache
def claims() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """By id, the two keys of a mutant in the file: its function with the numbered change, and with the change."""
    count: Counter[tuple[str, str]] = Counter()
    found = {}
    for m in all_mutants():
        function, change = f"{m.module}:{m.function}", " -> ".join(m.change)
        count[function, change] += 1
        found[m.id] = (function, f"#{count[function, change]} {change}"), (function, change)
    return found
