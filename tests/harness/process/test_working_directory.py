"""Where a worker starts: in the working directory of its parent, or, where that is gone, in an empty one of its own.

The root, or any other directory that no one has chosen, holds what a kernel that clears up must not delete. The kernel
here only looks; one that deletes is in the museum, and runs in a throwaway root.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packproof.base.errors import KernelFault, UsageError
from packproof.harness.process import process_supply
from packproof.harness.process.worker import Worker
from packproof.harness.process.zygote_client import import_path, spawn_zygote
from packproof.properties.calling.call import Call, Refusal

Make = Callable[..., Call]
LOOKS = """
import os, sys

def looks(x, weight, *, cu_seqlens):
    raise LookupError(f"in {os.getcwd()}: {os.listdir()}, imports from {sys.path}")
"""


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    file = tmp_path / "kernel.py"
    file.write_text(LOOKS)
    return f"{file}:looks"


@pytest.fixture
def gone(tmp_path: Path) -> Iterator[Path]:
    """The working directory, which does not exist any more."""
    folder = tmp_path / "gone"
    folder.mkdir()
    with contextlib.chdir(folder):
        folder.rmdir()
        yield folder


def place(worker: Worker, call: Call) -> str:
    with pytest.raises((KernelFault, Refusal)) as error:
        worker.run(call)
    return str(error.value)


def test_a_worker_starts_where_its_parent_is(make_call: Make, kernel: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with contextlib.chdir(tmp_path / "here"), Worker(kernel) as worker:
        assert f"in {tmp_path / 'here'}: []" in place(worker, make_call(2))


def test_where_that_is_gone_it_starts_in_an_empty_directory_of_its_own(
    make_call: Make, kernel: str, gone: Path, temporary: Path
) -> None:
    with Worker(kernel) as worker:
        first = place(worker, make_call(2))
        worker.restart()
        second = place(worker, make_call(2))
    for text in (first, second):
        assert f"in {temporary}{os.sep}packproof-" in text
        assert ": [], imports from " in text
        assert "'/'" not in text.partition("imports from ")[2]
    assert first.partition(": []")[0] != second.partition(": []")[0]
    assert list(temporary.iterdir()) == []


def test_a_directory_that_goes_while_a_worker_starts_is_like_one_that_is_gone(
    make_call: Make, kernel: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel has deleted it since it was named."""
    monkeypatch.setattr(process_supply, "working_directory", lambda: str(temporary / "no more"))
    with Worker(kernel) as worker:
        assert f"in {temporary}{os.sep}packproof-" in place(worker, make_call(2))
    assert list(temporary.iterdir()) == []


def test_a_process_that_starts_workers_does_so_where_there_is_no_directory(
    make_call: Make, kernel: str, gone: Path, temporary: Path
) -> None:
    """torch cannot be imported in a directory that is gone."""
    zygote = spawn_zygote(interpreted=False)
    try:
        with Worker(kernel) as worker:
            worker._supply._own_zygote, worker._supply._shares_zygote = zygote, False
            assert f"in {temporary}{os.sep}packproof-" in place(worker, make_call(2))
    finally:
        zygote.close()
    assert list(temporary.iterdir()) == []


@pytest.fixture
def relative_entries() -> Iterator[None]:
    """Two entries of sys.path that depend on the working directory, and one that does not."""
    sys.path[:0] = ["", "src", "/somewhere/else"]
    yield
    del sys.path[:3]


@pytest.mark.usefixtures("gone", "relative_entries")
def test_nothing_is_imported_from_the_root_where_the_directory_is_gone() -> None:
    assert import_path()[0] == "/somewhere/else"
    assert set(import_path()) <= set(sys.path[2:])


@pytest.mark.usefixtures("relative_entries")
def test_what_is_imported_is_found_from_any_directory(working_folder: Path) -> None:
    assert import_path()[:3] == [str(working_folder), str(working_folder / "src"), "/somewhere/else"]


def test_a_file_is_not_looked_for_in_a_directory_that_is_gone(gone: Path) -> None:
    with pytest.raises(UsageError, match="the working directory is gone; name the file by its whole path"):
        Worker("kernel.py:looks")
