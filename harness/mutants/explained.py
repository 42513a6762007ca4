"""Mutants that no check convicts, and why: `equivalent.json`, by what they change, so that it holds while code moves.

An entry has "function" (module:function), "changes" (a line before and after, as "was -> now") and "reason". One with
"beyond": true is wrong all the same: only other tiles or sizes than those of the interpreter would show it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packproof.harness.mutants.mutant import Mutant

FILE = Path(__file__).with_name("equivalent.json")


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Explanation:
    reason: str
    beyond: bool


def explained(mutants: Iterable[Mutant]) -> dict[str, Explanation]:
    """Those that have an explanation, by id."""
    known = {
        (e["function"], change): Explanation(e["reason"], e.get("beyond", False))
        for e in entries()
        for change in e["changes"]
    }
    found = {m.id: known.get((f"{m.module}:{m.function}", " -> ".join(m.change))) for m in mutants}
    return {name: explanation for name, explanation in found.items() if explanation}
