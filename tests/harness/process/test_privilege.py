"""Processes that evaluate cannot be inspected by others of the same user while a kernel may run."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from packproof.harness.process import privilege
from packproof.harness.process.privilege import concealment, is_concealed
from packproof.harness.process.worker import Worker

_OTHER_USER = 65534


def test_the_parent_of_a_kernel_is_concealed_until_it_is_gone(rogue: Callable[[str], str]) -> None:
    assert not is_concealed()
    with Worker(rogue("good")) as worker:
        worker.describe()  # which imports it: its code has run
        assert is_concealed()
        worker.restart()
        assert is_concealed()
    assert not is_concealed()


def test_it_lasts_until_the_last_reason_is_gone() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(concealment())
    second.enter_context(concealment())
    first.close()
    assert is_concealed()
    second.close()
    assert not is_concealed()


def _looks_into(pid: int) -> bool:
    """Whether a process of the same user, without the rights of root, opens what another one has open."""
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(_OTHER_USER)
        try:
            os.readlink(f"/proc/{pid}/fd/0")
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("hidden", [False, True])
def test_others_of_the_same_user_see_nothing(hidden: bool) -> None:
    report, ready = os.pipe()
    wait, over = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(over)
        if os.getuid() == 0:
            os.setuid(_OTHER_USER)
        privilege._LIBC.prctl(privilege._PR_SET_DUMPABLE, 1, 0, 0, 0)  # setuid conceals by itself
        with concealment() if hidden else ExitStack():
            os.write(ready, b".")
            os.read(wait, 1)
        os._exit(0)
    os.read(report, 1)
    try:
        assert _looks_into(child) is not hidden
    finally:
        os.close(over)
        os.waitpid(child, 0)
        for end in (report, ready, wait):
            os.close(end)


@pytest.mark.parametrize(
    ("ranges", "is_mapped"),
    [("0 0 4294967295\n", True), ("0 0 1\n", False), ("0 1000 1\n1 100000 65536\n", True), ("", False)],
)
def test_root_becomes_another_user_only_where_there_is_one(tmp_path: Path, ranges: str, is_mapped: bool) -> None:
    (tmp_path / "uid_map").write_text(ranges)
    assert privilege._is_mapped(str(tmp_path / "uid_map")) is is_mapped
