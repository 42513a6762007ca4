"""Rogues: kernels that cheat a checker, or break it, each in one way. All pretend to compute the running sum of `op`.

`entries()` has them as data. A naive harness, one that compares one call with the reference by `allclose`, passes every
one of them. packproof detects or reports each, or its entry gives the reason why it is not defended against.
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

    cheat: how. properties: those that judge it. links: where it was found, none for one that was made up. detected:
    words of the failure, or of the reason why it is inconclusive. undefended: why packproof does not see it, or "".
    destroys: whether it deletes, overwrites or kills what is not its own, so that only a throwaway root may see it.
    """

    id: str
    title: str
    cheat: str
    kernel: str
    properties: tuple[str, ...]
    detected: str = ""
    undefended: str = ""
    links: tuple[str, ...] = ()
    destroys: bool = False


@cache
def entries() -> dict[str, Rogue]:
    """The rogues by id."""
    data = json.loads((files(__package__) / "entries.json").read_text(encoding="utf-8"))
    return {fields["id"]: _rogue(fields) for fields in data}


def _rogue(fields: dict[str, Any]) -> Rogue:
    lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Rogue(**{**fields, **lists})
