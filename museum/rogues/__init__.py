"""Rogues: kernels cheating or breaking a checker, each in one way. All pretend to compute the running sum of `op`.

`entries()` lists them as data. All of them pass a naive harness: one call, compared with the reference by `allclose`.
packproof detects or reports each rogue; otherwise its entry gives the reason for the missing defence.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.museum.rogues.neighbour import Neighbour
    from packproof.museum.rogues.op import running_sum
    from packproof.museum.rogues.throwaway import MARK, require_throwaway_root

__all__ = ["MARK", "Neighbour", "Rogue", "entries", "require_throwaway_root", "running_sum"]

Kind = Literal["answer", "refusal", "memory", "process", "contract", "machine", "computed", "model"]

export(
    sys.modules[__name__],
    {
        "packproof.museum.rogues.neighbour": ("Neighbour",),
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
    kind: Kind
    """What it abuses: answers that it did not compute, or only for a test; refusals; memory beside its own; its own
    process; its declaration; files and processes of others; who computed; or the packing of a whole model."""
    cheat: str
    """How it cheats."""
    kernel: str
    """The kernel, or the module of a rogue of kind "model", as "module:name"."""
    properties: tuple[str, ...] = ("reference",)
    """The properties to check it with."""
    op: str = "running_sum"
    """The op that it pretends to compute: that of `op`, or one of packproof."""
    contract: Mapping[str, Any] | None = None
    """Fields of the contract by which it is judged, beside the op's own. None: without a contract."""
    detected: str = ""
    """Words of the expected failure, or of the reason for an inconclusive verdict."""
    undefended: str = ""
    """Why packproof does not detect it; "" if it does."""
    links: tuple[str, ...] = ()
    """Reports of the cheat elsewhere; none for an invented one."""
    destroys: bool = False
    """Whether it deletes, overwrites or kills files or processes of others. It then runs in a throwaway root only."""
    harms: str = ""
    """Words of what it changes around it where nothing prevents that; its values are correct. "" for other rogues."""


@cache
def entries() -> dict[str, Rogue]:
    """The rogues by id."""
    data = json.loads((files(__package__) / "entries.json").read_text(encoding="utf-8"))
    return {fields["id"]: _rogue(fields) for fields in data}


def _rogue(fields: dict[str, Any]) -> Rogue:
    lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Rogue(**{**fields, **lists})
