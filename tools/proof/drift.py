"""What changed between two runs of the same checks beside other releases of what packproof is installed with.

    python -m packproof.proof.drift BEFORE AFTER [--markdown FILE]
    python -m packproof.proof.drift --releases FOLDER [--markdown FILE]

`.ci/drift` writes such a folder: `versions.txt` of pip, and `museum.json`, `alarms.json`, `peers.json` if these ran.
`.ci/drift --releases` writes one with such a folder for each release of several packages.
Exit code 1 if something is worse: an undetected bug, a false alarm, a property of a peer that failed or was not judged.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from packproof.base.errors import PackproofError
from packproof.base.files import replace_text
from packproof.base.wording import plural
from packproof.proof.drift_changes import changes, read_results, read_versions, section, version_changes
from packproof.proof.release_drift import release_report


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
        *section("Releases", releases),
        *section("Worse", worse),
        *section("Changed", [change for change in found if not change.is_worse]),
    ]
    return "\n".join(lines), bool(worse)


def _selected_report(runs: Sequence[Path], releases: Path | None) -> tuple[str, bool]:
    if releases is None:
        return report(*runs)
    return release_report(releases)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="packproof.proof.drift", description="What changed between two runs.")
    parser.add_argument("runs", type=Path, nargs="*", metavar="BEFORE AFTER")
    parser.add_argument(
        "--releases", type=Path, metavar="FOLDER", help="instead: releases of packages, one to the next"
    )
    parser.add_argument("--markdown", help="write the report to this file, too")
    options = parser.parse_args(arguments)
    if len(options.runs) != (0 if options.releases else 2):
        parser.error("name two folders, BEFORE and AFTER, or one with --releases alone")
    try:
        text, is_worse = _selected_report(options.runs, options.releases)
        if options.markdown:
            replace_text(Path(options.markdown), text)
    except (PackproofError, OSError, KeyError) as error:
        print(f"packproof.proof.drift: {error}", file=sys.stderr)
        return 2
    print(text)
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
