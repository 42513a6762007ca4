"""The command line of a check is read in a fork, while this process imports torch, which takes five times as long.

The fork runs the command up to where it would import torch. There it hands over its name and arguments, with which this
process runs it once more. A command that ends before that has said all there is to say.
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

_OWN_FAULT = 3  # as in `ending`, which this process does not import before torch

_begun: tuple[str, dict[str, Any]] | None = None  # the command that runs in this process, and its arguments
_parent: socket.socket | None = None  # in the fork


def resumable(command: Callable[..., int]) -> Callable[..., int]:
    """The command, where it may be handed over."""

    @wraps(command)
    def begun(**given: Any) -> int:
        global _begun  # noqa: PLW0603
        _begun = command.__name__, given
        return command(**given)

    return begun


def hand_over() -> None:
    """What a resumable command calls before it imports torch. A fork that only reads the command line ends here."""
    if _parent is not None:
        sys.stdout.flush()
        _parent.sendall(json.dumps(_begun).encode())
        os._exit(0)


def read_beside(arguments: Sequence[str], run: Callable[[Sequence[str]], int]) -> tuple[str, dict[str, Any]] | None:
    """Import torch and fork the zygote; the command and its arguments, as `run` reads them meanwhile, or None if the
    fork in which it does was lost. Ends this process once there will be nothing to hand over, with what `run` returns.
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
    """End at once where the fork does so with nothing to hand over."""

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
    except BaseException:  # no frame above may see it: those belong to the parent
        traceback.print_exc()
    finally:
        os._exit(code)
