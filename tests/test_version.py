"""Releases that packproof was not tried with are named, and not refused."""

import re
from pathlib import Path

import pytest

from packproof import version as releases

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("release", "newer"),
    [
        ("2.9.0", False),
        ("2.15.0+cu132", False),
        ("2.15.3", False),
        ("2.16.0", True),
        ("2.16.0a0+git1234", True),
        ("3.0", True),
        ("2.100.1", True),
        ("", False),
        ("unknown", False),
    ],
)
def test_a_release_is_newer_than_those_tried(release: str, newer: bool) -> None:
    assert releases.is_newer(release, "2.15") is newer


def test_an_untried_release_is_named() -> None:
    oldest, newest = releases.TRIED["torch"]
    versions = {"torch": "99.0.0+cu132", "triton": f"{releases.TRIED['triton'][1]}.1"}
    assert dict(releases.untried(versions.__getitem__)) == {
        "torch": f"torch 99.0.0 is newer than what packproof was tried with ({oldest} to {newest})"
    }
    assert releases.installed("no-such-package") == ""
    assert releases.installed("pytest") == pytest.__version__


def test_the_oldest_release_that_was_tried_is_the_oldest_that_installs() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for package, (oldest, _) in releases.TRIED.items():
        assert re.search(rf'"{package}>={oldest}(;[^"]*)?"', declared), package


def test_what_was_run_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    for package, (oldest, newest) in releases.TRIED.items():
        column = 1 if package == "torch" else 2
        rows = [line.split("|")[1:-1] for line in page.splitlines() if re.match(r"\| 3\.", line)]
        run = {tuple(map(int, row[column].strip().split(".")[:2])) for row in rows}
        assert min(run) == tuple(map(int, oldest.split(".")))
        assert max(run) == tuple(map(int, newest.split(".")))
