"""The soak of the judge: what it plays, and how it sees what has changed."""

import os
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch

from packproof.cli.main import run
from packproof.harness.process.execution.fork import start_fork
from packproof.proof.museum.file_digest import changed_folders, folder_digests
from packproof.proof.museum.hungry_kernels import starts_all_processes, takes_all_memory
from packproof.proof.museum.memory_group import NoControlGroupError, memory_group
from packproof.proof.museum.soak import SoakResult, soak_lines
from packproof.proof.museum.submissions import submissions


def test_submissions_are_of_every_kind_and_those_of_a_seed_are_the_same() -> None:
    played = list(islice(submissions(0), 200))
    assert played == list(islice(submissions(0), 200))
    assert played != list(islice(submissions(1), 200))
    assert Counter(s.kind for s in played) == {"correct": 64, "wrong": 64, "rogue": 64, "hungry": 8}
    assert all(0 in s.exit_codes for s in played if s.kind == "correct")
    assert not any(0 in s.exit_codes for s in played if s.kind in ("wrong", "hungry"))


@pytest.mark.parametrize("kernel", [takes_all_memory, starts_all_processes])
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


def test_a_soak_in_words() -> None:
    result = SoakResult({"wrong": 3, "correct": 1}, ("C1 (wrong): 0",), ("/etc",), (77,), 2, 61.0)
    assert not result.holds
    assert list(soak_lines(result)) == [
        "another exit code than alone: C1 (wrong): 0",
        "changed: /etc",
        "left running: process 77",
        "4 submissions (1 correct, 3 wrong) in 61 s, 2 times out of memory: 1 verdict changed, 1 place changed, "
        "processes left: 1",
    ]


def test_where_there_is_no_root_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("packproof.proof.museum.throwaway_root.WAYS", {})
    assert run(["museum", "soak", "--minutes", "0", "--submissions", "1"]) == 4
    assert "no throwaway root can be made here" in capsys.readouterr().err
