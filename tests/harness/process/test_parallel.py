"""Units side by side: what they yield, how they end, and what remains of them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from packproof.base.errors import UsageError
from packproof.harness.process import parallel
from packproof.harness.process.parallel import UnitError, differentiate_apart, run_on_every_core, run_side_by_side
from tests.in_process import environment


def pids(count: int, seconds: float = 0.0) -> Iterator[int]:
    for _ in range(count):
        time.sleep(seconds)
        yield os.getpid()


def fails() -> Iterator[int]:
    yield os.getpid()
    raise ValueError("lengths")


def dies() -> Iterator[int]:
    yield os.getpid()
    os._exit(3)


def hangs() -> Iterator[int]:
    yield os.getpid()
    while True:
        time.sleep(1)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_unit_runs_in_a_process_of_its_own() -> None:
    found = list(run_side_by_side([partial(pids, 2)] * 3, max_processes=2, record_type=int))
    assert sorted(map(found.count, set(found))) == [2, 2, 2]
    assert os.getpid() not in found


PRESSED = """
import os, signal
from packproof.harness.process.parallel import run_side_by_side

def unit():
    yield 1

signal.signal(signal.SIGINT, signal.default_int_handler)
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    print(list(run_side_by_side([unit], 1, record_type=int)))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_not_lost_in_a_fork() -> None:
    """Python ignores what is raised in a hook of a fork, which torch and logging have."""
    done = subprocess.run([sys.executable, "-c", PRESSED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def met(folder: Path, count: int) -> Iterator[int]:
    """Ends once so many units have begun."""
    (folder / str(os.getpid())).touch()
    end = time.monotonic() + 60
    while len(os.listdir(folder)) < count:
        assert time.monotonic() < end, "the others have not begun"
        time.sleep(0.01)
    yield os.getpid()


def test_units_run_at_the_same_time(tmp_path: Path) -> None:
    assert len(set(run_side_by_side([partial(met, tmp_path, 4)] * 4, max_processes=4, record_type=int))) == 4


def drained(stream: Iterator[int], found: list[int]) -> None:
    found.extend(stream)  # keeps what came before an exception


@pytest.fixture(params=["forks", "no forks"])
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a fork of this process can differentiate; beside a GPU it cannot."""
    can_fork: bool = request.param == "forks"
    monkeypatch.setattr(parallel, "_can_fork_differentiate", lambda: can_fork)
    return can_fork


def test_an_exception_ends_the_stream_after_the_others_and_names_its_origin(forks: bool) -> None:
    found: list[int] = []
    with pytest.raises(UnitError if forks else ValueError, match="lengths") as error:
        drained(run_side_by_side([fails, partial(pids, 3, 0.1), fails], max_processes=2, record_type=int), found)
    assert len(found) == 5
    assert error.value.__notes__[-1].startswith("and beside it ")
    if forks:
        assert 'raise ValueError("lengths")' in error.value.__notes__[0]


def test_a_unit_that_dies_does_not_end_the_others() -> None:
    found: list[int] = []
    with pytest.raises(UnitError, match="ended with exit code 3"):
        drained(run_side_by_side([dies, partial(pids, 3)], max_processes=1, record_type=int), found)
    assert len(found) == 4


def test_a_unit_that_yields_nothing_for_too_long_is_ended_alone() -> None:
    found: list[int] = []
    with pytest.raises(UnitError, match="gave nothing for 1 s"):
        drained(
            run_side_by_side([hangs, partial(pids, 4, 0.4)], max_processes=2, record_type=int, max_silence=1.0), found
        )
    assert len(found) == 5
    assert all(map(gone, found))


def test_an_exception_is_not_lost_to_an_interrupt() -> None:
    stream = run_side_by_side(
        [fails, partial(pids, 100, 0.1)], max_processes=1, record_type=int
    )  # the second starts when the first has failed
    taken = [next(stream) for _ in range(4)]
    with pytest.raises(UnitError, match="ValueError: lengths"):
        stream.throw(KeyboardInterrupt)
    assert all(map(gone, taken))


def test_no_process_remains_when_the_stream_is_closed() -> None:
    stream = run_side_by_side([partial(pids, 100, 0.1)] * 2, max_processes=2, record_type=int)
    found = {next(stream) for _ in range(6)}
    stream.close()
    assert all(map(gone, found))


def test_where_forks_cannot_differentiate_units_run_here_one_after_another(forks: bool) -> None:
    found = list(run_side_by_side([partial(pids, 2)] * 2, max_processes=2, record_type=int))
    assert (found == [os.getpid()] * 4) is not forks
    assert len(found) == 4


def test_units_on_cuda_are_spread_over_the_gpus() -> None:
    def where() -> Iterator[str]:
        yield os.environ["CUDA_VISIBLE_DEVICES"]

    with environment(CUDA_VISIBLE_DEVICES="4,7"):
        assert sorted(run_on_every_core([where] * 3, "cuda", record_type=str)) == ["4", "4", "7"]
        assert list(run_on_every_core([where], "cpu", record_type=str)) == ["4,7"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


@pytest.fixture(params=[None, "cuda"])
def accelerator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What torch was built for."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: request.param)
    name: str | None = request.param
    return name


def test_autograd_is_used_in_a_fork_where_there_is_a_gpu(accelerator: str | None, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    differentiate_apart(lambda: file.write_text(str(os.getpid())))
    assert (file.read_text() == str(os.getpid())) == (accelerator is None)


@pytest.mark.usefixtures("accelerator")
def test_an_error_of_what_is_differentiated_is_raised_here() -> None:
    def fails() -> None:
        raise UsageError("its reference looks ahead")

    with pytest.raises(UsageError, match="its reference looks ahead"):
        differentiate_apart(fails)
