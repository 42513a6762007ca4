"""The museum: real bugs of packed kernels, re-created in small runnable kernels. docs/quality.md describes the data.

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
    """A class of bugs.

    >>> from packproof import museum
    >>> all(bug_class.title and bug_class.note for bug_class in museum.classes().values())
    True
    """

    title: str
    """The common property of these bugs."""
    note: str
    """Why tests miss them."""


@dataclass(frozen=True)
class Control:
    """A correct kernel: a check failing it raises a false alarm.

    >>> from packproof import museum
    >>> control = next(iter(museum.controls().values()))
    >>> control.op in ("causal_conv1d", "selective_scan", "ssd", "rope", "rope_qk", "attention")
    True
    """

    id: str
    """Unique in the museum."""
    op: str
    """Name of the op."""
    title: str
    """One line on the kernel."""
    kernel: str
    """The kernel, as "module:name"."""
    promises: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Guarantees of its design: arguments of `packproof.Promises`."""

    def load(self) -> Callable[..., Any]:
        """Import the kernel. It has the signature of the op in packproof.refs."""
        module, _, name = self.kernel.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function


@dataclass(frozen=True)
class Entry(Control):
    """A kernel with one bug.

    >>> from packproof import museum
    >>> bug = museum.entries()["C1"]
    >>> bug.op, bug.title
    ('causal_conv1d', 'no sequence mask: taps read the previous sequence')
    """

    bug_class: str = ""
    """A key of `classes()`."""
    cause: str = ""
    """The mistake in the kernel."""
    lengths: tuple[int, ...] = ()
    """The smallest layout with an incorrect result."""
    when: str = ""
    """Further conditions for an incorrect result."""
    links: tuple[str, ...] = ()
    """Reports of the bug elsewhere; none for an invented bug."""
    properties: tuple[str, ...] = ()
    """The properties able to detect it, the best first."""
    dtype: str = "float32"
    """Dtype of the tokens."""
    gradients: bool = True
    """Whether the kernel has gradients."""
    needs_gpu: bool = False
    """Whether only hardware shows the bug."""


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
    scalar_fields = {name: value for name, value in fields.items() if name not in {"class", "trigger", *lists}}
    trigger = fields["trigger"]
    return Entry(
        **scalar_fields,
        **lists,
        bug_class=fields["class"],
        lengths=tuple(trigger["lengths"]),
        when=trigger.get("when", ""),
    )


@cache
def _data() -> Any:
    return json.loads(files(__name__).joinpath("entries.json").read_text(encoding="utf-8"))
