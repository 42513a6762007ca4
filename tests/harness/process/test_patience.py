"""A process that cannot run gets more time; one that can run and does not answer gets none."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packproof.harness.process.patience import Patience, core_waits
from packproof.harness.process.process_supply import ProcessSupply
from packproof.harness.process.worker import Worker


class Clock:
    """A clock that a test advances, so that the load of the machine does not matter."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


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


def wait_for_waits(pid: int, seconds: float) -> None:
    """Until the threads of a process and of its descendants have waited for a core for so long, from now on."""
    before, end = dict(core_waits(pid)), time.monotonic() + 60
    while sum(waits - before.get(thread, 0.0) for thread, waits in core_waits(pid)) < seconds:
        assert time.monotonic() < end, "its waits are not counted"
        time.sleep(0.02)


@pytest.mark.parametrize(("threads", "is_overdue"), [(32, False), (600, True)])
def test_a_process_that_starts_others_without_end_keeps_itself_waiting(
    threads: int, is_overdue: bool, clock: Clock
) -> None:
    """Compilers that wait for a core count as its waits. Some of many always wait: it had ten times the limit."""
    patience = Patience(5.0, 1, clock=clock, read_waits=lambda _: [(k, clock.now) for k in range(threads)])
    for _ in range(12):
        patience.seconds_left()
        clock.now += 0.5
    assert (patience.seconds_left() <= 0) == is_overdue


def test_a_process_that_does_not_run_has_its_limit_and_no_more(clock: Clock) -> None:
    with idle() as pid:
        patience = Patience(0.6, pid, clock=clock)
        clock.now += 0.59
        assert 0 < patience.seconds_left() <= 0.0101
        clock.now += 0.02
        assert patience.seconds_left() <= 0


@pytest.mark.parametrize("pid", [0, 2**22 + 1])
def test_a_process_that_is_not_known_has_its_limit(clock: Clock, pid: int) -> None:
    patience = Patience(0.1, pid, clock=clock)
    clock.now += 0.09
    assert patience.seconds_left() > 0
    clock.now += 0.02
    assert patience.seconds_left() <= 0


def test_a_process_that_waits_for_a_core_has_longer(clock: Clock) -> None:
    with crowded() as pid:
        patience = Patience(0.2, pid, clock=clock)
        clock.now += 0.06  # when it looks for the first time
        assert patience.seconds_left() > 0
        wait_for_waits(pid, 0.3)
        clock.now += 0.3
        assert patience.seconds_left() > 0
        clock.now += 0.3
        assert patience.seconds_left() <= 0.2


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
    clock: Clock, threads: int, until: float, expected: float
) -> None:
    waits = dict.fromkeys(range(threads), 0.0)
    patience = Patience(1.0, 7, clock=clock, read_waits=lambda pid: waits.items())
    assert overdue_after(patience, clock, waits, until) == pytest.approx(expected, abs=0.1)


def test_an_answer_that_comes_at_once_costs_no_look(clock: Clock) -> None:
    patience = Patience(0.6, 7, clock=clock, read_waits=lambda pid: pytest.fail("looked"))
    assert 0 < patience.seconds_left() <= 0.05
    clock.now += 0.04
    assert patience.seconds_left() > 0


def test_it_ends_by_the_clock_where_that_was_asked(clock: Clock) -> None:
    patience = Patience(60.0, 0, deadline=clock.now + 1, clock=clock)
    clock.now += 0.9
    assert 0 < patience.seconds_left() <= 0.1 + 1e-9
    clock.now += 0.2
    assert patience.seconds_left() <= 0


SPINS = "print(flush=True)\nwhile True: pass"


@pytest.mark.proof
@pytest.mark.parametrize("work", [SPINS, f"subprocess.run([sys.executable, '-c', {SPINS!r}])"], ids=["itself", "below"])
def test_what_a_thread_waits_counts_as_in_a_backward_pass_on_a_gpu(work: str) -> None:
    thread = f"def work():\n{textwrap.indent(work, '    ')}\nthreading.Thread(target=work).start()"
    with on_crowded_core([sys.executable, "-c", f"import subprocess, sys, threading\n{thread}"]) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the other threads only wait for this one, by now
        wait_for_waits(process.pid, 0.3)


def test_what_a_compiler_waits_counts_however_far_below_it_runs() -> None:
    spinning = f"{sys.executable} -c 'print(flush=True)\nwhile True: pass'"
    with on_crowded_core(["sh", "-c", f'sh -c "{spinning} & wait" & wait']) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_for_waits(process.pid, 0.3)


@contextmanager
def on_crowded_core(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process on a core that others use."""
    core = str(min(os.sched_getaffinity(0)))
    process = subprocess.Popen(
        ["taskset", "--cpu-list", core, *command], start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        with crowded():
            yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


_SLOW = """
import os, time
STARTED = time.process_time()
os.sched_setaffinity(0, {CORE})
while time.process_time() < STARTED + 0.6:
    pass

def kernel(x, weight, *, cu_seqlens):
    return x * weight
"""


def test_an_import_that_waits_for_a_core_has_longer(rogue: Callable[[str], str], tmp_path: Path) -> None:
    with Worker(rogue("good")) as worker:
        worker.open()  # the process that starts workers is there then
    (tmp_path / "slow.py").write_text(_SLOW.replace("CORE", str(min(os.sched_getaffinity(0)))))
    supply = ProcessSupply(f"{tmp_path / 'slow.py'}:kernel", "cpu", draw_configs=False)
    with crowded():
        supply.start_spare()
        process, supply.spare = supply.spare, None
        assert process is not None
        process.await_import(limit=1.5)
    process.end()
    supply.close()
