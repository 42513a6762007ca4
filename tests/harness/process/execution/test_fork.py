"""A fork runs its function and nothing else, and always ends with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from packproof.base.errors import PackproofError
from packproof.harness.process.execution.fork import ForkError, call_in_fork, start_fork


def raise_error(error: BaseException) -> Callable[[], int]:
    def function() -> int:
        raise error

    return function


def kill_itself() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda: None, 0),
        (lambda: 7, 7),
        (lambda: sys.exit(0), 1),
        (raise_error(ValueError("lengths")), 1),
        (raise_error(KeyboardInterrupt()), 1),
        (kill_itself, -signal.SIGKILL),
    ],
)
def test_how_a_function_ends_is_the_end_of_its_fork(function: Callable[[], int], code: int) -> None:
    assert start_fork(function).wait() == code


def test_an_exit_code_for_exceptions_may_be_chosen() -> None:
    assert start_fork(raise_error(ValueError()), error_code=3).wait() == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PackproofError("not this layout"), "not this layout\n"),
        (ImportError("no torch"), "ImportError: no torch (test_fork.py:"),
        (ValueError("lengths"), "Traceback (most recent call last):\n"),
    ],
)
def test_an_exception_is_printed(error: Exception, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    start_fork(raise_error(error)).wait()
    assert capfd.readouterr().err.startswith(text)


def test_signals_of_a_fork_reach_neither_handlers_nor_event_loop_of_its_parent() -> None:
    before = {number: signal.signal(number, lambda *_: os._exit(9)) for number in (signal.SIGINT, signal.SIGTERM)}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)

    def press_ctrl_c() -> int:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        return 0

    try:
        assert start_fork(press_ctrl_c).wait() == -signal.SIGTERM
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def test_a_fork_is_killed_when_its_parent_ends() -> None:
    script = (
        "import time\nfrom packproof.harness.process.execution.fork import start_fork\n"
        "print(start_fork(lambda: time.sleep(60)).pid, flush=True)"
    )
    pid = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_fork_that_another_has_waited_for_has_no_exit_code() -> None:
    fork = start_fork(lambda: 7)
    os.waitpid(fork.pid, 0)
    assert fork.wait() is None
    assert fork.kill() is None


def test_a_result_comes_back() -> None:
    assert call_in_fork(lambda: ["a" * 200_000, os.getpid()], 60)[0] == "a" * 200_000
    assert call_in_fork(os.getpid, 60) != os.getpid()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (raise_error(ValueError("lengths")), "^ValueError: lengths$"),
        (kill_itself, "^its process ended with status 9$"),
        (lambda: time.sleep(60), "^its process ended with status 14$"),
    ],
)
def test_a_result_that_does_not_come_is_an_error(function: Callable[[], object], text: str) -> None:
    with pytest.raises(ForkError, match=text):
        call_in_fork(function, 1)
