"""Mutants that nothing can convict, and why: `equivalent.json`, by what they change, so that it holds while code moves.

An entry has "function" (module:function), "changes" (a line before and after, as "was -> now") and "reason".
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packproof.harness.mutants.mutant import Mutant

FILE = Path(__file__).with_name("equivalent.json")


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def explained(mutants: Iterable[Mutant]) -> dict[str, str]:
    """The reasons of those that have one, by id."""
    reasons = {(e["function"], change): e["reason"] for e in entries() for change in e["changes"]}
    found = {m.id: reasons.get((f"{m.module}:{m.function}", " -> ".join(m.change))) for m in mutants}
    return {name: reason for name, reason in found.items() if reason}
