"""The results of `.ci/drift` and how they differ: the museum, correct kernels, and the peers, by what was asked."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packproof.base.files import read_json
from packproof.base.wording import plural

_NOTHING, _NOT_ASKED, _NOT_IMPORTED = "none", "not asked", "a module is missing"
_HELD = ("passed", "holds", "detected", "no alarm")
_UNJUDGED = ("not applicable", "not offered", _NOTHING, _NOT_IMPORTED)


@dataclass(frozen=True)
class Change:
    """One result that is another one than before."""

    subject: str
    """What was asked: an entry of the museum, a correct kernel, or a property of a peer in a dtype."""
    before: str
    after: str
    versions: str = ""
    """The releases of the peer, if they differ."""

    @property
    def is_worse(self) -> bool:
        """Whether it held, or was judged, and does not now."""
        return self.before in _HELD and self.after not in _HELD

    @property
    def is_better(self) -> bool:
        """Whether it holds, and did not, or was not judged where the kernel ran."""
        return self.after in _HELD and self.before not in (*_HELD, _NOT_IMPORTED)

    def __str__(self) -> str:
        return f"{self.subject}: {self.before}, now {self.after}{f' ({self.versions})' if self.versions else ''}"


def read_versions(folder: Path) -> dict[str, str]:
    """Releases by the names of their distributions, from `pip freeze`."""
    lines = (folder / "versions.txt").read_text().splitlines()
    return dict(line.split("==", 1) for line in lines if re.fullmatch(r"[\w.-]+==\S+", line))


def version_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """The distributions whose releases differ, with both."""
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"{name} {before.get(name, _NOTHING)} → {after.get(name, _NOTHING)}"


def read_results(folder: Path) -> dict[str, tuple[str, str]]:
    """The status of every result, and of a peer its release, by what was asked. Files that are missing have none."""
    results: dict[str, tuple[str, str]] = {}
    for entry in _rows(folder, "museum.json", "results"):
        results[f"museum {entry['id']}"] = entry["status"], ""
    for kernel in _rows(folder, "alarms.json", "results"):
        n_alarms = len(kernel["false"])
        results[f"correct kernel {kernel['id']}"] = plural(n_alarms, "false alarm") if n_alarms else "no alarm", ""
    releases = {peer["peer"]: peer["version"] for peer in _rows(folder, "peers.json", "peers")}
    for row in _rows(folder, "peers.json", "rows"):
        status = _NOT_IMPORTED if _import_error(row) else row["verdict"].partition(",")[0]
        results[f"{row['peer']} {row['law']} {row['dtype']}"] = status, releases.get(row["peer"], "")
    return results


def _rows(folder: Path, name: str, field: str) -> Sequence[Mapping[str, Any]]:
    file = folder / name
    rows: Sequence[Mapping[str, Any]] = read_json(file, str(file), ".ci/drift")[field] if file.exists() else ()
    return rows


def _import_error(row: Mapping[str, Any]) -> str:
    """The module that a kernel missed, as its failure says; "" where it failed otherwise, or held."""
    if row["verdict"] == _NOT_IMPORTED:
        return str(row["reason"]).partition(" not judged: ")[2]
    return next((line for line in row.get("lines", ()) if line.startswith(("ModuleNotFoundError", "ImportError"))), "")


def unjudged_peers(folder: Path) -> list[str]:
    """The peers that could not be judged, with the reason."""
    reasons = {peer["peer"]: peer["reason"] for peer in _rows(folder, "peers.json", "peers") if peer["reason"]}
    errors = {row["peer"]: _import_error(row) for row in _rows(folder, "peers.json", "rows") if _import_error(row)}
    return [f"{peer}: {reason}" for peer, reason in {**reasons, **errors}.items()]


def changes(
    before: Mapping[str, tuple[str, str]], after: Mapping[str, tuple[str, str]], *, new_subjects: bool = False
) -> Iterator[Change]:
    """The results that are not as before.

    new_subjects: whether what was not asked before is a change. Between versions of packproof it is none.
    """
    for subject in before.keys() & after.keys():
        (old, old_release), (new, new_release) = before[subject], after[subject]
        if old != new:
            yield Change(subject, old, new, f"{old_release} → {new_release}" if old_release != new_release else "")
    for subject in before.keys() - after.keys():
        if before[subject][0] not in _UNJUDGED:
            yield Change(subject, before[subject][0], _NOT_ASKED)
    for subject in after.keys() - before.keys() if new_subjects else ():
        if after[subject][0] not in _UNJUDGED:
            yield Change(subject, _NOT_ASKED, after[subject][0])


def section(title: str, entries: Sequence[object], level: int = 2) -> list[str]:
    """A list below its title; nothing for no entries."""
    return [f"{'#' * level} {title}", "", *(f"- {entry}" for entry in entries), ""] if entries else []
