"""The replay file of a module's failure: written, read, checked and described without running anything."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.files import damaged_error
from packproof.base.law_names import MODULE_LAWS
from packproof.base.names import DEVICES, LABELS, SHORT_DTYPES, require_known
from packproof.base.wording import plural, printable
from packproof.harness.report.replay_files.replay_file import write_replay
from packproof.properties.cases import shorten
from packproof.version import __version__

MODULE_KIND = "module"
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
    """How the module was run, by the fields of `models.modes.Mode`."""
    message: tuple[str, ...] = ()
    """The failure, in a few lines of text."""
    labels: str = "auto"
    """The labels for the loss, one of LABELS."""

    def write(self, folder: str = ".packproof") -> tuple[str, str]:
        """Write the file. Returns its path and "", or "" and the reason for the lack of a file."""
        data = {"packproof": __version__, "version": 1, "kind": MODULE_KIND, **asdict(self)}
        convention = self.convention.rpartition(":")[2]
        return write_replay(folder, f"{convention}-{self.property}", data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], path: Path) -> "ModuleRecord":
        """The record from the content of a file. Raises UsageError, one line with the path, for a damaged file."""
        values: dict[str, Any] = {field.name: data.get(field.name) for field in fields(cls)}
        values["labels"] = data.get("labels", "auto")
        kinds: dict[str, tuple[tuple[type, ...], str]] = {
            **dict.fromkeys(("target", "convention", "property", "dtype", "device", "labels"), ((str,), "text")),
            "seed": ((int,), "an integer"),
            "inputs": ((int, str, type(None)), "a width, a function or null"),
            "output": ((str, type(None)), "text or null"),
            "redraw": ((bool,), "true or false"),
            "mode": ((dict,), "an object"),
        }
        for name, (types, expected) in kinds.items():
            if not isinstance(values[name], types) or "\0" in str(values[name]):
                raise damaged_error(path, f"{name} is {values[name]!r}, expected {expected}")
        for name, minimum in (("lengths", 1), ("gaps", 0)):
            if not _is_list_of_counts(values[name], minimum) or (name == "lengths" and not values[name]):
                raise damaged_error(path, f"{name} is {values[name]!r}, expected a list of numbers from {minimum} on")
        if sum((*values["lengths"], *values["gaps"])) > _MOST_TOKENS:
            raise damaged_error(path, f"it has more than {_MOST_TOKENS:,} tokens")
        if values["gaps"] and len(values["gaps"]) != len(values["lengths"]) + 1:
            raise damaged_error(
                path, f"gaps has {len(values['gaps'])} numbers, expected one more than lengths, or none"
            )
        try:
            require_known("property", values["property"], MODULE_LAWS)
            require_known("dtype", values["dtype"], SHORT_DTYPES)
            require_known("device", values["device"], DEVICES)
            require_known("labels", values["labels"], LABELS)
        except UsageError as error:
            raise damaged_error(path, str(error)) from None
        values |= {name: tuple(values[name] or ()) for name in ("lengths", "gaps", "message")}
        return cls(**values)

    def describe(self) -> dict[str, str]:
        """The record as rows of a name and a text."""
        padding = f", padding {list(self.gaps)}" if self.gaps else ""
        mode = ", ".join(name if value is True else str(value) for name, value in self.mode.items() if value)
        rows = {
            "module": self.target or "an instance, which no file names",
            "convention": self.convention,
            "property": f"{self.property}: {MODULE_LAWS[self.property]}",
            "dtype": self.dtype,
            "device": self.device,
            "layout": f"lengths {shorten(self.lengths)}, {plural(sum(self.lengths), 'token')}{padding}",
            "inputs": "" if self.inputs is None else str(self.inputs),
            "output": self.output or "",
            "weights": "matrices drawn at random" if self.redraw else "the module's own",
            "mode": mode,
            "labels": self.labels if self.property == "loss" else "",
            "seed": str(self.seed),
            "found": "; ".join(map(str, self.message)),
        }
        return {name: printable(text) for name, text in rows.items() if text}


def _is_list_of_counts(value: Any, minimum: int) -> bool:
    return isinstance(value, list | tuple) and all(type(count) is int and count >= minimum for count in value)
