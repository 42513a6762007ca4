"""What a kernel has started ends with it, whichever of packproof's processes is killed or stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from packproof.harness.process import zygote_client
from packproof.harness.process.parallel import UnitError, run_side_by_side
from packproof.harness.process.walls.namespaces import namespaces_work
from packproof.harness.process.worker import Worker
from packproof.harness.process.zygote_client import shared_zygote
from packproof.properties.calling.call import Call
from tests.in_process import environment

needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="this system allows no namespaces")

KERNEL = """
import subprocess, time
def leaves(x, weight, *, cu_seqlens):
    subprocess.run(["sh", "-c", "setsid sleep SECONDS & exit 0"], check=True)
    time.sleep(1000)
"""
JUDGE = """
import sys, torch
from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Call
call = Call({"x": torch.ones(1, 4), "weight": torch.ones(4)}, torch.tensor([0, 1]), {}, ("y",))
with Worker(sys.argv[1], time_limit=100) as worker:
    worker.run(call)
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(seconds: str) -> bool:
    """Whether a `sleep` of so many seconds runs."""
    commands = (path for path in Path("/proc").glob("[0-9]*/cmdline"))
    for path in commands:
        try:
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                return True
        except OSError:
            continue
    return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


QUICK = {("judge", "keeper")}
"""Those that are tried at every change."""


@needs_namespaces
@pytest.mark.parametrize(
    ("killed", "stopped"),
    [
        pytest.param(killed, stopped, marks=[] if (killed, stopped) in QUICK else [pytest.mark.proof])
        for killed in ("judge", "keeper", "zygote")
        for stopped in ("", "keeper", "zygote")
    ],
)
def test_a_process_that_has_detached_itself_ends_with_any_of_them(tmp_path: Path, killed: str, stopped: str) -> None:
    seconds = f"9{time.monotonic_ns()}"
    (tmp_path / "kernel.py").write_text(KERNEL.replace("SECONDS", seconds))
    command = [sys.executable, "-c", JUDGE, f"{tmp_path / 'kernel.py'}:leaves"]
    judge = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    keeper = zygote = judge.pid
    try:
        assert wait_until(lambda: running(seconds), 60)
        (keeper,) = children(judge.pid)
        (zygote,) = children(keeper)
        pids = {"judge": judge.pid, "keeper": keeper, "zygote": zygote}
        if stopped:
            os.kill(pids[stopped], signal.SIGSTOP)
        os.kill(pids[killed], signal.SIGKILL)
        assert wait_until(lambda: not running(seconds), 10)
    finally:
        judge.kill()
        for pid in (keeper, zygote):  # one that was stopped stays so
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        judge.wait()


def answers() -> Iterator[int]:
    yield 3


def stops() -> Iterator[int]:
    yield 1
    os.kill(os.getpid(), signal.SIGSTOP)
    yield 2


def test_a_judge_that_is_stopped_is_replaced() -> None:
    lost: list[str] = []

    def retry(_: int, text: str) -> Callable[[], Iterator[int]]:
        lost.append(text)
        return answers

    assert list(run_side_by_side([stops], 1, record_type=int, retry=retry)) == [1, 3]
    assert lost == ["its process was stopped by a signal"]
    with pytest.raises(UnitError, match=r"^a process that evaluated a kernel was stopped by a signal$"):
        list(run_side_by_side([stops], 1, record_type=int))


@pytest.mark.proof
@pytest.mark.usefixtures("no_zygote")
def test_a_zygote_that_is_stopped_is_replaced(
    make_call: Callable[..., Call], rogue: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(rogue("good")) as worker:
        worker.run(make_call(2))
        worker.restart()
        monkeypatch.setattr("packproof.harness.process.kernel_process._FORK_SECONDS", 2.0)
        monkeypatch.setattr("packproof.harness.process.child._ABORT_SECONDS", 0.5)
        monkeypatch.setattr(zygote_client, "_END_SECONDS", 0.5)
        client = shared_zygote(interpreted=True)
        (zygote,) = children(client._pid)
        os.kill(zygote, signal.SIGSTOP)
        worker.run(make_call(2))
        assert shared_zygote(interpreted=True) is not client


LIMITS = """
import os, resource
def lowers(x, weight, *, cu_seqlens):
    for pid in (0, os.getppid(), int(os.environ["PACKPROOF_JUDGE"])):
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
        except OSError:
            pass
    return x * weight
"""


def open_files_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max open files"))


@needs_namespaces
def test_lowered_limits_affect_no_other_process(make_call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(LIMITS)
    before = open_files_limit(os.getpid())
    with environment(PACKPROOF_JUDGE=str(os.getpid())), Worker(f"{tmp_path / 'kernel.py'}:lowers") as worker:
        worker.run(make_call(2))
    zygote = shared_zygote(interpreted=True)
    for pid in (os.getpid(), zygote._pid, *children(zygote._pid)):
        assert open_files_limit(pid) == before


SIGNALS = """
import os, signal
def signals(x, weight, *, cu_seqlens):
    for pid in (os.getppid(), int(os.environ["PACKPROOF_JUDGE"])):
        try:
            os.kill(pid, 0)
        except OSError:
            continue
        raise RuntimeError(f"{pid} could be ended")
    return x * weight
"""


@needs_namespaces
def test_no_process_of_packproof_can_be_signalled(make_call: Callable[..., Call], tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(SIGNALS)
    with environment(PACKPROOF_JUDGE=str(os.getpid())), Worker(f"{tmp_path / 'kernel.py'}:signals") as worker:
        worker.run(make_call(2))
