"""The soak of the judge: what it plays, and how it sees what has changed."""

import json
import os
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch

from packproof.base.records import to_json
from packproof.cli.main import run
from packproof.harness.process.execution.fork import start_fork
from packproof.proof.museum import soak_play
from packproof.proof.museum.file_digest import changed_folders, folder_digests, has_changed_since
from packproof.proof.museum.hungry_kernels import starts_all_processes, starts_all_sessions, takes_all_memory
from packproof.proof.museum.memory_group import NoControlGroupError, memory_group
from packproof.proof.museum.soak import _SPARE_SECONDS, SoakResult, _read_lines, run_soak, soak_lines
from packproof.proof.museum.soak_play import Play, Remains, _running_processes
from packproof.proof.museum.submissions import Submission, submissions
from packproof.proof.museum.throwaway_root import ThrowawayRootError


def test_submissions_are_of_every_kind_and_those_of_a_seed_are_the_same() -> None:
    played = list(islice(submissions(0), 200))
    assert played == list(islice(submissions(0), 200))
    assert played != list(islice(submissions(1), 200))
    assert Counter(s.kind for s in played) == {"correct": 64, "wrong": 64, "rogue": 64, "hungry": 8}
    assert all(0 in s.exit_codes for s in played if s.kind == "correct")
    assert not any(0 in s.exit_codes for s in played if s.kind in ("wrong", "hungry"))


@pytest.mark.parametrize("kernel", [takes_all_memory, starts_all_processes, starts_all_sessions])
def test_a_kernel_that_takes_all_there_is_asks_for_a_throwaway_root(kernel: object) -> None:
    assert callable(kernel)
    with pytest.raises(RuntimeError, match="in a throwaway root"):
        kernel(torch.ones(3, 2), torch.ones(2), cu_seqlens=torch.tensor([0, 3]))


def test_a_digest_shows_what_has_been_set_back(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("as it was")
    before = folder_digests(str(tmp_path), without=[str(tmp_path / "c")])
    times = (tmp_path / "a/file").stat()
    (tmp_path / "a/file").write_text("otherwise")
    os.utime(tmp_path / "a/file", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "c/file").unlink()
    (tmp_path / "b/new").mkdir()
    after = folder_digests(str(tmp_path), without=[str(tmp_path / "c")])
    assert changed_folders(before, after) == [str(tmp_path / name) for name in ("a", "b", "b/new")]


def test_the_system_ends_what_takes_more_memory_than_its_group_has() -> None:
    def take_all() -> None:
        group.join()
        [bytearray(os.urandom(1 << 20)) for _ in range(256)]

    try:
        with memory_group(1 << 26, 64) as group:
            assert start_fork(take_all).wait() == -9
            assert group.kills() > 0
            assert group.members() == []
    except NoControlGroupError as error:
        pytest.skip(str(error))


def test_what_others_change_meanwhile_stands_apart(tmp_path: Path) -> None:
    start = time.time()
    assert has_changed_since(tmp_path / "made and removed", start)  # its parent is new
    assert not has_changed_since(Path(os.__file__).parent, start)
    assert not has_changed_since(tmp_path, start + 60)


WRONG = Play("C1", "wrong", 0, is_right=False)
CORRECT = Play("P1", "correct", 0, is_right=True)
UNJUDGED = Play("P2", "correct", 4, is_right=False, lacked_memory=True)


def test_a_soak_in_words() -> None:
    result = SoakResult((WRONG, CORRECT, UNJUDGED), ("/etc",), ("/tmp",), (77,), 2, 61.0, 4)
    assert list(soak_lines(result)) == [
        "another exit code than alone: C1 (wrong): 0",
        "not judged, since the machine lacked memory: P2",
        "changed: /etc",
        "changed on the machine itself, by others: /tmp",
        "left running: process 77",
        "only 3 of 4 submissions were checked in this time",
        "3 submissions (2 correct, 1 wrong) in 61 s, 2 times out of memory: 1 verdict changed, 1 place changed, "
        "processes left: 1",
    ]


@pytest.mark.parametrize(
    ("result", "holds", "is_conclusive"),
    [
        (SoakResult((CORRECT,), (), ("/tmp",), (), 2, 61.0, 1), True, True),
        (SoakResult((WRONG,), (), (), (), 2, 61.0, 1), False, True),
        (SoakResult((CORRECT,), ("/etc",), (), (), 2, 61.0, 1), False, True),
        (SoakResult((CORRECT,), (), (), (77,), 2, 61.0, 1), False, True),
        (SoakResult((CORRECT,), (), (), (), 2, 61.0, 1, is_complete=False), False, True),
        (SoakResult((CORRECT,), (), (), (), 2, 61.0, 2), True, False),
        (SoakResult((CORRECT, UNJUDGED), (), (), (), 2, 61.0, 1), True, False),
    ],
)
def test_a_soak_holds_if_nothing_changed_and_tells_if_all_was_judged(
    result: SoakResult, *, holds: bool, is_conclusive: bool
) -> None:
    assert (result.holds, result.is_conclusive) == (holds, is_conclusive)


def fake_command(submission: Submission) -> list[str]:
    """A check that takes as many seconds as its name says, and ends with the code that its op says."""
    program = "import sys, time; time.sleep(float(sys.argv[1])); print(sys.argv[3]); sys.exit(int(sys.argv[2]))"
    return [sys.executable, "-c", program, submission.name, submission.op, "this machine lacks memory"]


@pytest.mark.proof
def test_four_submissions_are_played_until_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that still run then have no verdict, and are ended."""
    monkeypatch.setattr(soak_play, "_FOLDER", tmp_path)
    monkeypatch.setattr(soak_play, "_command", fake_command)
    monkeypatch.setattr(soak_play, "available_cores", lambda: 2)
    codes = {"0.1": "0", "0.2": "4", "0.3": "1", "60": "0"}
    source = [Submission(name, "correct", "", code, (), (0,)) for name, code in codes.items()]
    start = time.monotonic()
    plays = list(soak_play.play_submissions(iter(source), 4.0))
    assert time.monotonic() - start < 30
    assert {play.name: (play.code, play.is_right, play.lacked_memory) for play in plays} == {
        "0.1": (0, True, False),
        "0.2": (4, False, True),
        "0.3": (1, False, False),
    }


def test_a_zombie_is_not_running() -> None:
    zombie, running = os.posix_spawn("/bin/true", ["true"], {}), start_fork(lambda: time.sleep(60))
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    processes = set(_running_processes())
    os.waitpid(zombie, 0)
    running.kill()
    assert running.pid in processes
    assert zombie not in processes


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_soak_that_was_ended_says_what_it_has_seen(*, is_complete: bool) -> None:
    remains = Remains(("/etc",), (77,))
    lines = [json.dumps(to_json(record)) for record in (CORRECT, WRONG, remains)]
    lines = lines if is_complete else [*lines[:2], lines[2][:9]]
    assert _read_lines(lines) == ([CORRECT, WRONG], remains if is_complete else None)


@pytest.mark.proof
def test_a_short_soak_holds() -> None:
    try:
        result = run_soak(60, 4, 0)
    except (NoControlGroupError, ThrowawayRootError) as error:
        pytest.skip(str(error))
    assert list(soak_lines(result))[-1].startswith(f"{len(result.plays)} submissions (")
    assert result.is_complete
    assert result.holds
    assert len(result.plays) >= 4
    assert result.seconds < 60 + _SPARE_SECONDS


def test_where_there_is_no_root_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("packproof.proof.museum.throwaway_root.WAYS", {})
    assert run(["museum", "soak", "--minutes", "0", "--submissions", "1"]) == 4
    assert "no throwaway root can be made here" in capsys.readouterr().err
