"""Forks of this process, each for one function. A fork ends with its function, whatever that raises.

Nothing of the parent runs in a fork: no frame above the function, no `finally`, no handler of a signal, no `atexit`.
Light: the command line forks before it imports anything else.
"""

import ctypes
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from packproof.base.errors import PackproofError

_PR_SET_PDEATHSIG = 1
_OUTSIDE = 0  # the id of a parent outside of this process's namespace


class ForkError(PackproofError):
    """A fork raised an exception or was killed. The text names the exception or the status."""


class Fork(NamedTuple):
    """A fork of this process."""

    pid: int
    """Its process id."""

    def wait(self) -> int | None:
        """Wait for its end. Returns its exit code; for a killed one the number of the signal, negative.

        None if the calling program's own SIGCHLD handler has waited for it.
        """
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return None

    def kill(self) -> int | None:
        """End it if it still runs, and wait for its end."""
        with suppress(ProcessLookupError):  # a SIGCHLD handler has waited for it
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: it waits for another one."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False


def start_fork(function: Callable[[], int | None], *, ends_with_parent: bool = True, error_code: int = 1) -> Fork:
    """Run the function in a fork of this process. The fork ignores Ctrl-C: its parent decides when it ends.

    function: returns the exit code, None for 0. An exception is printed.
    ends_with_parent: whether the fork is killed when this thread ends.
    error_code: the exit code after an exception.
    """
    parent_pid = os.getpid() if ends_with_parent else None
    with defer_interrupts():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about other threads: the fork runs none of them
            pid = os.fork()
        if pid == 0:
            _run_and_exit(function, parent_pid, error_code)
    return Fork(pid)


def _run_and_exit(function: Callable[[], int | None], parent_pid: int | None, error_code: int) -> NoReturn:
    code = error_code
    try:
        reset_signals()
        if parent_pid is None or _end_with_parent(parent_pid):
            code = function() or 0
    except BaseException as error:  # no exception may reach the frames above: they belong to the parent
        print_error(error)
    finally:
        os._exit(code)


def call_in_fork(function: Callable[[], Any], seconds: int) -> Any:
    """The result of the function, a JSON value, computed in a fork. Raises ForkError if there is none in time."""
    reader, writer = os.pipe()

    def send_result() -> None:
        signal.alarm(seconds)
        try:
            answer = {"result": function()}
        except BaseException as error:
            answer = {"error": traceback.format_exception_only(error)[-1].strip()}
        with open(writer, "w") as pipe:
            json.dump(answer, pipe)

    fork = start_fork(send_result)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    code = fork.wait()
    if not text or code:
        raise ForkError(f"its process ended with status {abs(code or 0)}")
    answer = json.loads(text)
    if "error" in answer:
        raise ForkError(answer["error"])
    return answer["result"]


def print_error(error: BaseException) -> None:
    """Print an error on stderr: the text of packproof's own, one line for a failed import, else the traceback."""
    if isinstance(error, PackproofError):
        print(error, file=sys.stderr)
    elif isinstance(error, ImportError | MemoryError):
        from packproof.base.importing import one_line_reason  # noqa: PLC0415  (seldom needed)

        print(one_line_reason(error), file=sys.stderr)
    else:
        traceback.print_exception(error)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Raise Ctrl-C at the end of the block, not inside it.

    Python prints and forgets an exception raised in a hook of `os.fork`, and forking a large process takes long. A
    process forked inside the block never gets the Ctrl-C.
    """
    original_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, original_mask)


def reset_signals() -> None:
    """Leave the parent's signals to it: Ctrl-C is ignored here, SIGTERM ends this process, SIGCHLD has no handler."""
    signal.set_wakeup_fd(-1)  # else each signal here would be reported to an event loop of the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _end_with_parent(parent_pid: int) -> bool:
    """Be killed when the parent ends; False if it has already ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() in (parent_pid, _OUTSIDE)
