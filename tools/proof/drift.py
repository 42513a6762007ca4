"""What changed between two runs of the same checks beside other releases of what packproof is installed with.

    python -m packproof.proof.drift BEFORE AFTER [--markdown FILE]

`.ci/drift` writes such a folder: `versions.txt` of pip, and `museum.json`, `alarms.json`, `peers.json` if these ran.
Exit code 1 if something is worse: an undetected bug, a false alarm, a property of a peer that failed or was not judged.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packproof.base.errors import PackproofError
from packproof.base.files import read_json, replace_text
from packproof.base.wording import plural

_NOTHING = "none"
_HELD = ("passed", "holds", "detected", "no alarm")
_UNJUDGED = ("not applicable", "not offered", _NOTHING)


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
        law = f"{row['law']} ({row['beyond']})" if row["beyond"] else row["law"]
        status = row["verdict"].partition(",")[0]
        results[f"{row['peer']} {law} {row['dtype']}"] = status, releases.get(row["peer"], "")
    return results


def _rows(folder: Path, name: str, field: str) -> Sequence[Mapping[str, Any]]:
    file = folder / name
    rows: Sequence[Mapping[str, Any]] = read_json(file, str(file), ".ci/drift")[field] if file.exists() else ()
    return rows


def changes(before: Mapping[str, tuple[str, str]], after: Mapping[str, tuple[str, str]]) -> Iterator[Change]:
    """The results that are not as before. What is new, and what a newer packproof no longer asks, is no change."""
    for subject in before.keys() & after.keys():
        (old, old_release), (new, new_release) = before[subject], after[subject]
        if old != new:
            yield Change(subject, old, new, f"{old_release} → {new_release}" if old_release != new_release else "")
    for subject in before.keys() - after.keys():
        if before[subject][0] not in _UNJUDGED:
            yield Change(subject, before[subject][0], "not asked")


def report(before: Path, after: Path) -> tuple[str, bool]:
    """The report in markdown, and whether something is worse."""
    releases = list(version_changes(read_versions(before), read_versions(after)))
    old, new = read_results(before), read_results(after)
    found = sorted(changes(old, new), key=lambda change: (not change.is_worse, change.subject))
    worse = [change for change in found if change.is_worse]
    lines = [
        "# Drift",
        "",
        f"{plural(len(new), 'result')}, {plural(len(releases), 'other release')}: "
        f"{len(worse)} worse, {len(found) - len(worse)} otherwise changed.",
        "",
        *_section("Releases", releases),
        *_section("Worse", worse),
        *_section("Changed", [change for change in found if not change.is_worse]),
    ]
    return "\n".join(lines), bool(worse)


def _section(title: str, entries: Sequence[object]) -> list[str]:
    return [f"## {title}", "", *(f"- {entry}" for entry in entries), ""] if entries else []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="packproof.proof.drift", description="What changed between two runs.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--markdown", help="write the report to this file, too")
    options = parser.parse_args(arguments)
    try:
        text, is_worse = report(options.before, options.after)
        if options.markdown:
            replace_text(Path(options.markdown), text)
    except (PackproofError, OSError, KeyError) as error:
        print(f"packproof.proof.drift: {error}", file=sys.stderr)
        return 2
    print(text)
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
