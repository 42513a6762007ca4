"""A throwaway root: what a command does to files in it is gone afterwards, and no file outside of it changes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from packproof.cli import main
from packproof.museum.rogues import entries
from packproof.museum.rogues.deletions import deletes_its_working_directory
from packproof.museum.rogues.throwaway import MARK
from packproof.proof.museum import rogues
from packproof.proof.museum.rogues import fools_a_naive_harness, try_rogues
from packproof.proof.museum.throwaway_root import WAYS, ThrowawayRootError, environment, throwaway_root
from packproof.proof.museum.throwaway_root import main as run_in_root

DELETES = entries()["R98"]


@pytest.fixture(params=WAYS)
def prefix(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """The prefix of a command in a root that was made in one of the two ways."""
    try:
        with throwaway_root({request.param: WAYS[request.param]}) as prefix:
            yield prefix
    except ThrowawayRootError as error:
        pytest.skip(str(error))


def in_root(prefix: tuple[str, ...], script: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    line = [*prefix, "sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False, timeout=60)


def test_what_is_written_and_deleted_in_it_is_not_outside(prefix: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("as it was")
    script = 'pwd; ls; cat "$1/file"; rm -rf "$1/file"; echo x > "$1/file"; echo x > "$1/new"; echo x > /new; echo > y'
    done = in_root(prefix, script, tmp_path)
    assert done.stdout == f"{MARK / 'run'}\nas it was"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "as it was"
    assert not Path("/new").exists()
    assert not MARK.exists()


def test_its_processes_are_its_own(prefix: tuple[str, ...]) -> None:
    done = in_root(prefix, "ls /proc; kill -0 $1", os.getpid() + 10**6)
    assert len([name for name in done.stdout.split() if name.isdigit()]) < 8
    assert str(os.getpid()) not in done.stdout.split() or os.getpid() < 8


@pytest.mark.proof
def test_a_rogue_that_deletes_its_working_directory_is_detected_there(prefix: tuple[str, ...]) -> None:
    """Before, its second process began in the root, and deleted all of it."""
    before = [sorted(os.listdir(folder)) for folder in ("/", "/etc", os.getcwd())]
    [result] = try_rogues([DELETES])
    assert result.is_as_expected, result.text
    assert [sorted(os.listdir(folder)) for folder in ("/", "/etc", os.getcwd())] == before


@pytest.mark.proof  # ten seconds
def test_what_it_deletes_elsewhere_is_seen(prefix: tuple[str, ...]) -> None:
    """The listing by which the rogue's own run is judged."""
    look = "from packproof.proof.museum.rogues import _top_level_files; print(sorted(_top_level_files()))"
    script = 'mkdir "$1/canary"; "$2" -P -c "$3"; rmdir "$1/canary"; "$2" -P -c "$3"'
    first, second = in_root(prefix, script, MARK, sys.executable, look).stdout.splitlines()
    assert "'canary'" in first
    assert "'canary'" not in second


@pytest.mark.proof
def test_a_naive_harness_passes_it_there(prefix: tuple[str, ...]) -> None:
    assert fools_a_naive_harness(DELETES)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system on which no root can be made."""
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("nowhere")
def test_where_no_root_can_be_made_it_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    [result] = try_rogues([DELETES])
    assert result.fate == "not run"
    assert (
        result.text
        == "no throwaway root can be made here (bubblewrap: not installed; an overlay: only root can mount one)"
    )
    assert not result.is_as_expected
    assert main.run(["museum", "rogues", DELETES.id]) == 4
    *_, line, summary = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{DELETES.id}   not run   {DELETES.title}: no throwaway root can be made here")
    assert summary == "0 of 1 detected, reported or prevented, 0 not defended against, 1 not run"
    with pytest.raises(ThrowawayRootError):
        fools_a_naive_harness(DELETES)


@pytest.mark.usefixtures("nowhere")
def test_others_run_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["museum", "rogues", "R2", DELETES.id]) == 0
    assert "1 of 2 detected, reported or prevented, 0 not defended against, 1 not run" in capsys.readouterr().out


def test_a_root_that_is_none_is_not_used() -> None:
    """A command that changes nothing about where the next one runs."""
    with (
        pytest.raises(ThrowawayRootError, match="env: what is done in it is done outside"),
        throwaway_root({"env": lambda _: ("env",)}),
    ):
        pytest.fail("it was made")


def test_the_kernel_itself_deletes_nothing_elsewhere(working_folder: Path) -> None:
    (working_folder / "file").touch()
    assert not MARK.exists()
    x, weight = torch.ones(2, 3), torch.ones(3)
    with pytest.raises(RuntimeError, match="only `packproof museum rogues` runs it"):
        deletes_its_working_directory(x, weight, cu_seqlens=torch.tensor([0, 2]))
    with pytest.raises(RuntimeError, match="only `packproof museum rogues` runs it"):
        rogues.main("check", DELETES.id)
    assert [file.name for file in working_folder.iterdir()] == ["file"]


def test_a_root_is_not_built_outside_of_namespaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in_root(str(tmp_path), "true") == 1
    assert "it runs in namespaces of its own" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_those_that_reach_other_processes_or_files_are_marked() -> None:
    marked = {rogue.id for rogue in entries().values() if rogue.destroys and rogue.kind != "machine"}
    assert marked == {"R219", "R222", "R231", "R232"}  # read a judge's memory, end a group, end and stop sibling ranks
    assert {"R62", "R63", "R98", *(r.id for r in entries().values() if r.kind == "machine")} == {
        rogue.id for rogue in entries().values() if rogue.destroys
    } - marked
