"""Read the command line of a check in a fork, while this process imports torch.

Importing torch takes five times as long as reading the command line. The fork runs the command until it would import
torch. There it sends the command's name and arguments to this process, and this process runs the command again. If the
command ends earlier (help, a usage error), the fork has already printed everything.
"""

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

from packproof.harness.worker.privilege import end_with_parent
from packproof.harness.worker.settled import interrupts_later, take_signals_as_a_fork
from packproof.harness.worker.zygote_client import early

_OWN_FAULT = 3  # as in `ending`: importing it here would delay torch

_begun: tuple[str, dict[str, Any]] | None = None  # name and arguments of the running command
_parent: socket.socket | None = None  # set in the fork only


def resumable(command: Callable[..., int]) -> Callable[..., int]:
    """A decorator for commands: records name and arguments, so that `hand_over` can send them to the parent process."""

    @wraps(command)
    def begun(**given: Any) -> int:
        global _begun  # noqa: PLW0603
        _begun = command.__name__, given
        return command(**given)

    return begun


def hand_over() -> None:
    """Send the command to the parent and end the fork; elsewhere do nothing.

    A resumable command calls this before it imports torch.
    """
    if _parent is not None:
        sys.stdout.flush()
        _parent.sendall(json.dumps(_begun).encode())
        os._exit(0)


def read_beside(arguments: Sequence[str], run: Callable[[Sequence[str]], int]) -> tuple[str, dict[str, Any]] | None:
    """Import torch and fork the zygote, while a fork reads the command line by `run`.

    Returns the command's name and arguments, or None if the fork was killed. If the fork ends without a command to run,
    this process exits with the exit code of `run`.
    """
    ours, its = socket.socketpair()
    me = os.getpid()
    with interrupts_later():
        reader = os.fork()
        if reader == 0:
            _read(lambda: run(arguments), its, me)
    its.close()
    with _ending_with(reader, ours):
        early()
    with ours:
        text = b"".join(iter(lambda: ours.recv(1 << 16), b""))
    code = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    if not text and code >= 0:
        os._exit(code)
    return tuple(json.loads(text)) if code == 0 else None


@contextmanager
def _ending_with(reader: int, ours: socket.socket) -> Iterator[None]:
    """Exit as soon as the fork has exited without sending a command."""

    def look(*_: object) -> None:
        ended = os.waitid(os.P_PID, reader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended and ended.si_code == os.CLD_EXITED and not ours.recv(1, socket.MSG_PEEK):
            os._exit(ended.si_status)

    signal.signal(signal.SIGCHLD, look)
    look()
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _read(run: Callable[[], int], parent: socket.socket, pid: int) -> NoReturn:
    global _parent
    code, _parent = _OWN_FAULT, parent
    try:
        take_signals_as_a_fork()
        if end_with_parent(pid):
            code = run()
            sys.stdout.flush()
    except BaseException:  # frames above belong to the parent process
        traceback.print_exc()
    finally:
        os._exit(code)
