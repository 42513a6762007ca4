"""A process that cannot run is given longer, one that can and does not answer is not."""

import multiprocessing
import os
import time

import pytest

from packproof.harness.worker.patience import Patience


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def waited(patience: Patience) -> float:
    started = time.monotonic()
    while (left := patience.left()) > 0:
        time.sleep(left)
    return time.monotonic() - started


def test_a_process_that_sleeps_has_its_limit_and_no_more() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    process.start()
    assert process.pid is not None
    try:
        assert 0.6 <= waited(Patience(0.6, process.pid)) < 1.2
    finally:
        process.kill()


def test_a_process_that_waits_for_a_core_has_longer_but_not_for_ever() -> None:
    core = min(os.sched_getaffinity(0))
    processes = [multiprocessing.get_context("fork").Process(target=spin, args=(30,)) for _ in range(3)]
    for process in processes:
        process.start()
        assert process.pid is not None
        os.sched_setaffinity(process.pid, {core})
    try:
        pid = processes[0].pid
        assert pid is not None
        assert waited(Patience(0.6, pid)) > 1.2
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("pid", [0, 2**22 + 1])
def test_a_process_that_is_not_known_has_its_limit(pid: int) -> None:
    assert 0.1 <= waited(Patience(0.1, pid)) < 0.4
