"""The parent's side of a program: starts its process, asks it, and says how it ended."""

import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from packproof.base.errors import KernelFault
from packproof.harness.process.child import Child, ZygoteLostError
from packproof.harness.process.patience import Patience
from packproof.harness.process.privilege import concealment
from packproof.harness.process.wire import MAX_TENSORS, Frame, WireError
from packproof.harness.process.zygote_client import (
    ZygoteClient,
    import_path,
    keep_private,
    working_directory,
)

_START_SECONDS = 120.0  # to be forked, on a busy machine


class ProgramProcess:
    """A process that runs a program.

    zygote: the process to fork it from.
    program: the module of packproof with its `run(order, state, channel)`; see `worker_main.run_worker`.
    order: for the program: JSON values.

    Every method raises KernelFault if the process ended, gave no answer in time or wrote something else into the
    channel; it has then been ended.
    """

    def __init__(self, zygote: ZygoteClient, program: str, order: Mapping[str, Any]) -> None:
        paths = {"sys_path": import_path(), "cwd": working_directory()}
        self._child = Child(zygote, {**order, **paths, "program": program})
        self._has_ended, self._n_requests = False, 0
        self._concealment = ExitStack()  # of this process, while the other one may exist
        self._concealment.enter_context(concealment())

    def start(self, seconds: float) -> Frame:
        """The first frame of the program, after it has had this long at most."""
        try:
            self._child.receive(Patience(_START_SECONDS, 0), _START_SECONDS)
            return self._child.receive(Patience(seconds, self._child.pid), seconds)
        except BaseException as error:
            raise self._as_fault(error) from error

    def ask(self, kind: str, body: Mapping[str, Any], tensors: Mapping[str, Any], seconds: float) -> Frame:
        """The answer to a request."""
        self._n_requests += 1
        frame = Frame(kind, self._n_requests, body, tensors)
        try:
            return self._child.ask(frame, seconds, MAX_TENSORS, time.monotonic() + 10 * seconds)
        except BaseException as error:
            raise self._as_fault(error) from error

    def _as_fault(self, error: BaseException) -> BaseException:
        """What to raise for this error; the process is ended."""
        self.end()
        if isinstance(error, ZygoteLostError):
            return KernelFault("killed", "ended the process that had started it")
        if isinstance(error, WireError | KeyError):
            return KernelFault("malformed", f"wrote into packproof's channel: {error}")
        return error

    def as_zygote(self) -> ZygoteClient:
        """Let the process fork others from itself from now on, and answer nothing more. They end with it."""
        control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            self._child.pass_socket(child_end)
        return ZygoteClient(keep_private(control), tempfile.TemporaryFile(), lambda: None)

    def end(self) -> None:
        """End the process and all that it started."""
        if not self._has_ended:
            self._has_ended = True
            self._child.close()
            self._concealment.close()
