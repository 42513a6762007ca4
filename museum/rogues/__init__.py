"""Rogues: kernels cheating or breaking a checker, each in one way. All pretend to compute the running sum of `op`.

`entries()` lists them as data. All of them pass a naive harness: one call, compared with the reference by `allclose`.
packproof detects or reports each rogue; otherwise its entry gives the reason for the missing defence.
"""

import json
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.museum.rogues.op import running_sum
    from packproof.museum.rogues.throwaway import MARK, require_throwaway_root

__all__ = ["MARK", "Rogue", "entries", "require_throwaway_root", "running_sum"]

export(
    sys.modules[__name__],
    {
        "packproof.museum.rogues.op": ("running_sum",),
        "packproof.museum.rogues.throwaway": ("MARK", "require_throwaway_root"),
    },
)


@dataclass(frozen=True)
class Rogue:
    """A cheating kernel."""

    id: str
    """Unique among rogues."""
    title: str
    """One line on the rogue."""
    cheat: str
    """How it cheats."""
    kernel: str
    """The kernel, as "module:name"."""
    properties: tuple[str, ...]
    """The properties to check it with."""
    detected: str = ""
    """Words of the expected failure, or of the reason for an inconclusive verdict."""
    undefended: str = ""
    """Why packproof does not detect it; "" if it does."""
    links: tuple[str, ...] = ()
    """Reports of the cheat elsewhere; none for an invented one."""
    destroys: bool = False
    """Whether it deletes, overwrites or kills files or processes of others. It then runs in a throwaway root only."""


@cache
def entries() -> dict[str, Rogue]:
    """The rogues by id."""
    data = json.loads((files(__package__) / "entries.json").read_text(encoding="utf-8"))
    return {fields["id"]: _rogue(fields) for fields in data}


def _rogue(fields: dict[str, Any]) -> Rogue:
    lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Rogue(**{**fields, **lists})
