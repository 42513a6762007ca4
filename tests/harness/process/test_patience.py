"""A process that cannot run gets more time; one that can run and does not answer gets none."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packproof.harness.process import kernel_process
from packproof.harness.process import patience as module
from packproof.harness.process.patience import Patience
from packproof.harness.process.worker import Worker


class Clock:
    """Stands in for the time module, so that the load of the machine does not matter."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@contextmanager
def idle() -> Iterator[int]:
    """The id of a process that does not ask for a core."""
    process = subprocess.Popen(["sleep", "30"])
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@contextmanager
def crowded() -> Iterator[int]:
    """The id of a process that shares a core with two others."""
    core = min(os.sched_getaffinity(0))
    processes = [multiprocessing.get_context("fork").Process(target=spin, args=(30,)) for _ in range(3)]
    for process in processes:
        process.start()
        assert process.pid is not None
        os.sched_setaffinity(process.pid, {core})
    try:
        assert processes[0].pid is not None
        yield processes[0].pid
    finally:
        for process in processes:
            process.kill()


def waited(patience: Patience) -> float:
    started = time.monotonic()
    while (left := patience.seconds_left()) > 0:
        time.sleep(left)
    return time.monotonic() - started


def test_a_process_that_does_not_run_has_its_limit_and_no_more(clock: Clock) -> None:
    with idle() as pid:
        patience = Patience(0.6, pid)
        clock.now += 0.59
        assert 0 < patience.seconds_left() <= 0.0101
        clock.now += 0.02
        assert patience.seconds_left() <= 0


@pytest.mark.parametrize("pid", [0, 2**22 + 1])
def test_a_process_that_is_not_known_has_its_limit(clock: Clock, pid: int) -> None:
    patience = Patience(0.1, pid)
    clock.now += 0.09
    assert patience.seconds_left() > 0
    clock.now += 0.02
    assert patience.seconds_left() <= 0


def test_a_process_that_waits_for_a_core_has_longer() -> None:
    with crowded() as pid:
        assert waited(Patience(0.6, pid)) > 1.2


def overdue_after(patience: Patience, clock: Clock, waits: dict[int, float], until: float) -> float:
    """Seconds by the clock, with a look every 10 ms; each thread of `waits` waits for a core until `until`."""
    started = clock.now
    while patience.seconds_left() > 0:
        clock.now += 0.01
        if clock.now - started < until:
            waits.update((thread, seconds + 0.01) for thread, seconds in waits.items())
    return clock.now - started


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("until", "expected"), [(0.0, 1.0), (2.0, 2.95), (100.0, 10.0)])
def test_what_threads_wait_at_once_counts_once_and_up_to_ten_times_the_limit(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, threads: int, until: float, expected: float
) -> None:
    waits = dict.fromkeys(range(threads), 0.0)
    monkeypatch.setattr(module, "_core_waits", lambda pid: waits.items())
    assert overdue_after(Patience(1.0, 7), clock, waits, until) == pytest.approx(expected, abs=0.1)


def test_an_answer_that_comes_at_once_costs_no_look(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(module, "_core_waits", lambda pid: pytest.fail("looked"))
    patience = Patience(0.6, 7)
    assert 0 < patience.seconds_left() <= 0.05
    clock.now += 0.04
    assert patience.seconds_left() > 0


def test_it_ends_by_the_clock_where_that_was_asked(clock: Clock) -> None:
    patience = Patience(60.0, 0, deadline=clock.now + 1)
    clock.now += 0.9
    assert 0 < patience.seconds_left() <= 0.1 + 1e-9
    clock.now += 0.2
    assert patience.seconds_left() <= 0


@pytest.mark.parametrize(
    "work", ["while True: pass", "subprocess.run([sys.executable, '-c', 'while True: pass'])"], ids=["itself", "below"]
)
def test_what_a_thread_waits_counts_as_in_a_backward_pass_on_a_gpu(work: str) -> None:
    core = min(os.sched_getaffinity(0))
    thread = f"def work():\n    {work}\nthreading.Thread(target=work).start()"
    process = subprocess.Popen(
        ["taskset", "--cpu-list", str(core), sys.executable, "-c", f"import subprocess, sys, threading\n{thread}"],
        start_new_session=True,
    )
    try:
        with crowded():
            assert waited(Patience(1.0, process.pid)) > 1.6
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_what_a_compiler_waits_counts_however_far_below_it_runs() -> None:
    core = min(os.sched_getaffinity(0))
    spinning = f"{sys.executable} -c 'while True: pass'"
    both = f'sh -c "{spinning} & {spinning} & wait" & wait'
    below = subprocess.Popen(["taskset", "--cpu-list", str(core), "sh", "-c", both], start_new_session=True)
    try:
        assert waited(Patience(0.6, below.pid)) > 0.9
    finally:
        os.killpg(below.pid, signal.SIGKILL)
        below.wait()


_SLOW = """
import os, time
STARTED = time.process_time()
os.sched_setaffinity(0, {CORE})
while time.process_time() < STARTED + 1.5:
    pass
"""


def test_an_import_that_waits_for_a_core_has_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast.py", tmp_path / "slow.py"
    fast.write_text("def kernel(x, weight, *, cu_seqlens):\n    return x * weight\n")
    slow.write_text(f"{_SLOW.replace('CORE', str(min(os.sched_getaffinity(0))))}\n{fast.read_text()}")
    with Worker(f"{fast}:kernel") as opened:
        opened.open()  # the process that starts workers is there then
    monkeypatch.setattr(kernel_process, "IMPORT_SECONDS", 2.5)
    with crowded(), Worker(f"{slow}:kernel") as opened:
        opened.open()
