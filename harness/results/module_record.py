"""The replay file of a module's failure: written, read, checked and described without running anything."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from packproof.harness.results.names import DEVICES, known
from packproof.harness.results.replay_file import damaged, write_replay
from packproof.harness.results.text import printable
from packproof.properties.cases.case import SHORT, shorten
from packproof.properties.laws.names import MODULE_LAWS
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted
from packproof.version import __version__

KIND = "module"
_MOST_TOKENS = 1 << 20


@dataclass(frozen=True)
class ModuleRecord:
    """One failure of a module."""

    target: str
    """The module, as `packproof model` takes it; "" for an instance."""
    convention: str
    """The name of the convention, or "module:NAME"."""
    property: str
    lengths: tuple[int, ...]
    """The lengths of the documents."""
    gaps: tuple[int, ...]
    """The lengths of the padding before, between and after the documents; () without padding."""
    dtype: str
    device: str
    seed: int
    inputs: int | str | None
    """The width of a token, "module:function" for the user's own inputs, or None for token ids."""
    output: str | None
    """The name of the output, "module:function", or None for the default."""
    redraw: bool
    """Whether the matrices were drawn at random."""
    mode: Mapping[str, str | bool]
    """How the module was run, by the fields of `modules.modes.Mode`."""
    message: tuple[str, ...] = ()
    """The failure, in a few lines of text."""

    def write(self, folder: str = ".packproof") -> tuple[str, str]:
        """Write the file. Returns its path and "", or "" and the reason for the lack of a file."""
        data = {"packproof": __version__, "version": 1, "kind": KIND, **asdict(self)}
        convention = self.convention.rpartition(":")[2]
        return write_replay(folder, f"{convention}-{self.property}", data)

    @classmethod
    def read(cls, data: Mapping[str, Any], path: Path) -> "ModuleRecord":
        """The record from the content of a file. Raises UsageError, one line with the path, for a damaged file."""
        given: dict[str, Any] = {field.name: data.get(field.name) for field in fields(cls)}
        kinds: dict[str, tuple[tuple[type, ...], str]] = {
            **dict.fromkeys(("target", "convention", "property", "dtype", "device"), ((str,), "text")),
            "seed": ((int,), "an integer"),
            "inputs": ((int, str, type(None)), "a width, a function or null"),
            "output": ((str, type(None)), "text or null"),
            "redraw": ((bool,), "true or false"),
            "mode": ((dict,), "an object"),
        }
        for name, (types, expected) in kinds.items():
            if not isinstance(given[name], types) or "\0" in str(given[name]):
                raise damaged(path, f"{name} is {given[name]!r}, expected {expected}")
        for name, least in (("lengths", 1), ("gaps", 0)):
            if not _counts(given[name], least) or (name == "lengths" and not given[name]):
                raise damaged(path, f"{name} is {given[name]!r}, expected a list of numbers from {least} on")
        if sum((*given["lengths"], *given["gaps"])) > _MOST_TOKENS:
            raise damaged(path, f"it has more than {_MOST_TOKENS:,} tokens")
        if given["gaps"] and len(given["gaps"]) != len(given["lengths"]) + 1:
            raise damaged(path, f"gaps has {len(given['gaps'])} numbers, expected one more than lengths, or none")
        try:
            known("property", given["property"], MODULE_LAWS)
            known("dtype", given["dtype"], SHORT)
            known("device", given["device"], DEVICES)
        except UsageError as error:
            raise damaged(path, str(error)) from None
        given |= {name: tuple(given[name] or ()) for name in ("lengths", "gaps", "message")}
        return cls(**given)

    def shown(self) -> dict[str, str]:
        """The record as rows of a name and a text."""
        padding = f", padding {list(self.gaps)}" if self.gaps else ""
        mode = ", ".join(name if value is True else str(value) for name, value in self.mode.items() if value)
        rows = {
            "module": self.target or "an instance, which no file names",
            "convention": self.convention,
            "property": f"{self.property}: {MODULE_LAWS[self.property]}",
            "dtype": self.dtype,
            "device": self.device,
            "layout": f"lengths {shorten(self.lengths)}, {counted(sum(self.lengths), 'token')}{padding}",
            "inputs": "" if self.inputs is None else str(self.inputs),
            "output": self.output or "",
            "weights": "matrices drawn at random" if self.redraw else "the module's own",
            "mode": mode,
            "seed": str(self.seed),
            "found": "; ".join(map(str, self.message)),
        }
        return {name: printable(text) for name, text in rows.items() if text}


def _counts(value: Any, least: int) -> bool:
    return isinstance(value, list | tuple) and all(type(count) is int and count >= least for count in value)
