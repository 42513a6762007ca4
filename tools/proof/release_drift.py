"""What changed from release to release of packages: the folder that `.ci/drift --releases` writes, as a page.

It holds PACKAGE/RELEASE/peers.json, a scoreboard of the peers of each release beside the same torch and triton.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.base.names import short_dtype
from packproof.proof.drift_changes import Change, changes, read_results, section, unjudged_peers


@dataclass(frozen=True)
class ReleaseStep:
    """Two releases of one package, one after the other."""

    package: str
    before: str
    after: str
    changes: tuple[Change, ...]

    @property
    def worse(self) -> list[Change]:
        return [change for change in self.changes if change.is_worse]

    @property
    def better(self) -> list[Change]:
        return [change for change in self.changes if change.is_better]

    @property
    def others(self) -> list[Change]:
        return [change for change in self.changes if not (change.is_worse or change.is_better)]


def release_report(folder: Path) -> tuple[str, bool]:
    """The page in markdown, and whether something is worse. Raises UsageError for a folder without results."""
    releases = _releases(folder)
    if not releases:
        raise UsageError(f"{folder} has no results, expected PACKAGE/RELEASE/peers.json, which `.ci/drift` writes")
    steps = {package: list(_steps(folder / package, names)) for package, names in releases.items()}
    table = [_row(folder / package, releases[package], steps[package]) for package in releases]
    head = [
        "| package | releases | results | worse | better | otherwise changed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    text = [line for package in releases for line in _package_lines(folder / package, steps[package])]
    is_worse = any(step.worse for package_steps in steps.values() for step in package_steps)
    return "\n".join(["# From release to release", "", *head, *table, "", *text]), is_worse


def _releases(folder: Path) -> dict[str, list[str]]:
    """The releases with results by package, the oldest first."""
    releases: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*/*/peers.json"), key=lambda file: _order(file.parent.name)):
        releases.setdefault(file.parent.parent.name, []).append(file.parent.name)
    return dict(sorted(releases.items()))


def _order(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def _steps(folder: Path, releases: Sequence[str]) -> Iterator[ReleaseStep]:
    for before, after in pairwise(releases):
        old, new = read_results(folder / before), read_results(folder / after)
        yield ReleaseStep(folder.name, before, after, tuple(_by_dtypes(changes(old, new, new_subjects=True))))


def _by_dtypes(found: Iterator[Change]) -> Iterator[Change]:
    """One change for all dtypes with the same one."""
    dtypes: dict[tuple[str, str, str], list[str]] = {}
    for change in sorted(found, key=lambda change: change.subject):
        subject, _, dtype = change.subject.rpartition(" ")
        dtypes.setdefault((subject, change.before, change.after), []).append(short_dtype(dtype))
    for (subject, before, after), names in dtypes.items():
        yield Change(f"{subject}, {' and '.join(names)}", before, after)


def _row(folder: Path, releases: Sequence[str], steps: Sequence[ReleaseStep]) -> str:
    counts = [sum(map(len, of_steps)) for of_steps in zip(*((s.worse, s.better, s.others) for s in steps), strict=True)]
    n_results = len(read_results(folder / releases[-1]))
    return f"| {folder.name} | {', '.join(releases)} | {n_results} | {' | '.join(map(str, counts or [0, 0, 0]))} |"


def _package_lines(folder: Path, steps: Sequence[ReleaseStep]) -> Iterator[str]:
    for step in steps:
        missing = unjudged_peers(folder / step.after)
        if not step.changes and not missing:
            continue
        yield from (f"## {step.package} {step.before} → {step.after}", "")
        for title, entries in (("Worse", step.worse), ("Better", step.better), ("Otherwise changed", step.others)):
            yield from section(title, entries, level=3)
        yield from section(f"Not judged at {step.after}", missing, level=3)
