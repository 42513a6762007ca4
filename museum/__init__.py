"""The museum: real bugs of packed kernels, re-created as small runnable ones. docs/museum.md describes the data.

Data and kernels need torch, and triton for some; nothing here needs packproof's harness.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

__all__ = ["BugClass", "Control", "Entry", "classes", "controls", "entries"]


@dataclass(frozen=True)
class BugClass:
    """What a class of bugs has in common: a title, and a note on why tests miss it.

    >>> from packproof import museum
    >>> all(bug_class.title and bug_class.note for bug_class in museum.classes().values())
    True
    """

    title: str
    note: str


@dataclass(frozen=True)
class Control:
    """A correct kernel: a check that fails it raises a false alarm. promises: what its design guarantees.

    >>> from packproof import museum
    >>> control = next(iter(museum.controls().values()))
    >>> control.op in ("causal_conv1d", "selective_scan", "ssd", "rope", "rope_qk", "attention")
    True
    """

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

    bug_class: a key of `classes()`. cause: what is wrong. lengths: the smallest layout that shows it; when: what else
    it takes. links: where it was found, none for a bug that was made up. properties: those that detect it, the best
    first. dtype: of the tokens. gradients: whether the kernel has any. needs_gpu: only hardware shows it.

    >>> from packproof import museum
    >>> bug = museum.entries()["C1"]
    >>> bug.op, bug.title
    ('causal_conv1d', 'no sequence mask: taps read the previous sequence')
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
    """The classes of bugs, by key.

    >>> from packproof import museum
    >>> museum.entries()["C1"].bug_class in museum.classes()
    True
    """
    return {key: BugClass(**fields) for key, fields in _data()["classes"].items()}


def controls() -> dict[str, Control]:
    """The correct kernels, by id.

    >>> from packproof import museum
    >>> all(id == control.id for id, control in museum.controls().items())
    True
    """
    return {fields["id"]: Control(**fields) for fields in _data()["controls"]}


def entries() -> dict[str, Entry]:
    """The kernels with a bug, by id.

    >>> from packproof import museum
    >>> museum.entries()["C1"].properties[0]
    'packing'
    """
    return {fields["id"]: _entry(fields) for fields in _data()["entries"]}


def _entry(fields: Mapping[str, Any]) -> Entry:
    lists: dict[str, Any] = {name: tuple(fields[name]) for name in ("links", "properties")}
    plain = {name: value for name, value in fields.items() if name not in {"class", "trigger", *lists}}
    trigger = fields["trigger"]
    return Entry(
        **plain, **lists, bug_class=fields["class"], lengths=tuple(trigger["lengths"]), when=trigger.get("when", "")
    )


@cache
def _data() -> Any:
    return json.loads(files(__name__).joinpath("entries.json").read_text(encoding="utf-8"))
