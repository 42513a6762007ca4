"""Files at unusual paths: a device, a pipe, a link, a full disk. Old contents are kept, and no temporary file stays."""

import errno
import os
import threading
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.base.files import WriteError, read_bytes, replace_text, writable_path


def fail_with(number: int) -> object:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["replace", "fchmod"])
def test_a_file_that_cannot_be_written_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    file = tmp_path / "r.json"
    replace_text(file, "before")
    monkeypatch.setattr(os, step, fail_with(number))
    with pytest.raises(WriteError, match=r"r\.json"):
        replace_text(file, "after")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EROFS])
def test_a_file_that_cannot_be_moved_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file = tmp_path / "mounted.json"
    file.write_text("before")
    monkeypatch.setattr(os, "replace", fail_with(number))
    replace_text(file, "after")
    assert file.read_text() == "after"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_a_link_and_a_mode_stays_a_mode(tmp_path: Path) -> None:
    file, link = tmp_path / "r.json", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to("r.json")
    replace_text(link, "after")
    assert link.is_symlink()
    assert file.read_text() == "after"
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    replace_text(link, "text")
    assert link.is_symlink()
    assert Path("/dev/null").is_char_device()
    with pytest.raises(WriteError, match="No space left"):
        replace_text(Path("/dev/full"), "text")
    assert Path("/dev/full").is_char_device()


def test_a_pipe_gets_only_the_last_version(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    replace_text(pipe, "first", final=False)
    replace_text(pipe, "last" * 100_000)
    reader.join()
    assert read == ["last" * 100_000]
    assert pipe.is_fifo()


def test_writing_to_a_pipe_without_a_reader_times_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WriteError, match="no one reads from this pipe"):
        replace_text(tmp_path / "pipe", "text", reader_seconds=0.1)


def test_a_file_that_this_process_prints_to_keeps_its_contents(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"printed\n")
    replace_text(Path("/dev/stdout"), "half\n", final=False)
    replace_text(Path("/dev/stdout"), "report\n")
    os.write(1, b"printed\n")
    assert capfd.readouterr().out == "printed\nreport\nprinted\n"
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize("name", ["loop", "dangling", "a" * 300, "missing/r.json"])
def test_an_unwritable_path_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("missing/r.json")
    with pytest.raises(UsageError, match="--json: "):
        writable_path(str(tmp_path / name), "--json")


def test_a_file_is_read_up_to_a_size_limit(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_bytes(b"12345")
    assert read_bytes(file, 5) == b"12345"
    with pytest.raises(UsageError, match="has more than 4 bytes"):
        read_bytes(file, 4)
    with pytest.raises(UsageError, match="is not a regular file"):
        read_bytes(Path("/dev/zero"), 4)
