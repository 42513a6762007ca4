"""Read the command line of a check in a fork, while this process imports torch.

The fork runs the command until it would import torch. There it sends the command's name and arguments to this process,
and this process runs the command again. If the command ends earlier (help, a usage error), the fork has already printed
everything.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from packproof.harness.process.execution.fork import start_fork

_INTERNAL_ERROR = 3  # as in `cli/ending`, which stands above

_resumable_command: tuple[str, dict[str, Any]] | None = None  # name and arguments of the running command
_parent_socket: socket.socket | None = None  # set in the fork only


def resumable(command: Callable[..., int]) -> Callable[..., int]:
    """A decorator for commands: records name and arguments, so that `hand_over` can send them to the parent process."""

    @wraps(command)
    def record_and_run(**arguments: Any) -> int:
        global _resumable_command  # noqa: PLW0603
        _resumable_command = command.__name__, arguments
        return command(**arguments)

    return record_and_run


def hand_over() -> None:
    """Send the command to the parent and end the fork; elsewhere do nothing.

    A resumable command calls this before it imports torch.
    """
    if _parent_socket is not None:
        sys.stdout.flush()
        _parent_socket.sendall(json.dumps(_resumable_command).encode())
        os._exit(0)


def read_in_fork(
    arguments: Sequence[str], run: Callable[[Sequence[str]], int], *, meanwhile: Callable[[], None]
) -> tuple[str, dict[str, Any]] | None:
    """Do something else, while a fork reads the command line by `run`.

    Returns the command's name and arguments, or None if the fork was killed. If the fork ends without a command to run,
    this process exits at once with the exit code of `run`.
    """
    # typer and the commands are imported on another core while torch is imported on this one. A wrong call and --help
    # end before torch is there, although this process began to import it first.
    parent_socket, fork_socket = socket.socketpair()

    def run_in_fork() -> int:
        global _parent_socket  # noqa: PLW0603
        _parent_socket = fork_socket
        code = run(arguments)
        sys.stdout.flush()
        return code

    reader = start_fork(run_in_fork, error_code=_INTERNAL_ERROR)
    fork_socket.close()
    with _exit_with_fork(reader.pid, parent_socket):
        meanwhile()
    with parent_socket:
        text = b"".join(iter(lambda: parent_socket.recv(1 << 16), b""))
    code = reader.wait()
    if not text and code is not None and code >= 0:
        os._exit(code)
    return tuple(json.loads(text)) if code == 0 else None


@contextmanager
def _exit_with_fork(reader_pid: int, parent_socket: socket.socket) -> Iterator[None]:
    """Exit as soon as the fork has exited without sending a command."""

    def exit_if_ended(*_: object) -> None:
        exit_info = os.waitid(os.P_PID, reader_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if exit_info and exit_info.si_code == os.CLD_EXITED and not parent_socket.recv(1, socket.MSG_PEEK):
            os._exit(exit_info.si_status)

    signal.signal(signal.SIGCHLD, exit_if_ended)
    exit_if_ended()
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
