"""The museum: real bugs of packed kernels, re-created as small runnable ones. docs/museum.md says what the data mean.

Data and kernels need torch, and triton for some; nothing here needs packproof's harness.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class BugClass:
    """What a class of bugs has in common: a title, and a note on why tests miss it."""

    title: str
    note: str


@dataclass(frozen=True)
class Control:
    """A kernel that is right: whoever convicts it has raised a false alarm. promises: what its design guarantees."""

    id: str
    op: str
    title: str
    kernel: str
    promises: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def load(self) -> Callable[..., Any]:
        """The kernel, in the signature of packproof.refs."""
        module, _, name = self.kernel.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found


@dataclass(frozen=True)
class Entry(Control):
    """A kernel with one bug.

    bug_class: a key of `classes()`. cause: what is wrong. lengths: the smallest layout that shows it; when: what it
    takes besides. links: where it was found, none for a bug that was made up. properties: that convict it, the best
    first. dtype: of the tokens. gradients: whether the kernel has any. needs_gpu: only hardware shows it.
    """

    bug_class: str = ""
    cause: str = ""
    lengths: tuple[int, ...] = ()
    when: str = ""
    links: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    dtype: str = "float32"
    gradients: bool = True
    needs_gpu: bool = False


def classes() -> dict[str, BugClass]:
    """The classes of bugs, by key."""
    return {key: BugClass(**said) for key, said in _data()["classes"].items()}


def controls() -> dict[str, Control]:
    """The right kernels, by id."""
    return {said["id"]: Control(**said) for said in _data()["controls"]}


def entries() -> dict[str, Entry]:
    """The wrong kernels, by id."""
    return {said["id"]: _entry(said) for said in _data()["entries"]}


def _entry(said: Mapping[str, Any]) -> Entry:
    lists: dict[str, Any] = {name: tuple(said[name]) for name in ("links", "properties")}
    plain = {name: value for name, value in said.items() if name not in {"class", "trigger", *lists}}
    trigger = said["trigger"]
    return Entry(
        **plain, **lists, bug_class=said["class"], lengths=tuple(trigger["lengths"]), when=trigger.get("when", "")
    )


@cache
def _data() -> Any:
    return json.loads(files(__name__).joinpath("entries.json").read_text(encoding="utf-8"))
