"""Rogues: kernels that cheat a checker, or break it, each in one way. All pretend to compute the running sum of `op`.

`entries()` has them as data. A naive harness, one that compares one call with the reference by `allclose`, passes every
one of them. Each is detected or reported by packproof, or says why it is not defended against.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Rogue", "entries"]


@dataclass(frozen=True)
class Rogue:
    """A kernel that cheats.

    cheat: how. properties: what it is judged by. links: where it was met, none for one that was made up. detected:
    words of the failure, or of why it is inconclusive. undefended: why nothing here sees it, "" for what is seen.
    """

    id: str
    title: str
    cheat: str
    kernel: str
    properties: tuple[str, ...]
    detected: str = ""
    undefended: str = ""
    links: tuple[str, ...] = ()


@cache
def entries() -> dict[str, Rogue]:
    """The rogues by id."""
    data = json.loads((files(__package__) / "entries.json").read_text(encoding="utf-8"))
    return {said["id"]: _rogue(said) for said in data}


def _rogue(said: dict[str, Any]) -> Rogue:
    lists: dict[str, Any] = {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
    return Rogue(**{**said, **lists})
