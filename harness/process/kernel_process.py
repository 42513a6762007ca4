"""One life of a kernel's process: it is forked from a zygote, imports the kernel, answers calls, and ends."""

import time
from collections.abc import Mapping
from typing import Any

from packproof.base.errors import KernelFault, MissingWallError, OutOfTime, PackproofError, UsageError
from packproof.harness.process.child import Child, ZygoteLostError
from packproof.harness.process.memory_wait import ProcessKilled
from packproof.harness.process.patience import Patience
from packproof.harness.process.wire import Frame, WireError, call_frame, decode_answer
from packproof.harness.process.zygote_client import ZygoteClient
from packproof.properties.calling import Call, MachineLimit, Refusal, Result

_START_SECONDS, _FORK_SECONDS = 120.0, 30.0  # for a zygote to import torch and fork, and to fork once more
_IMPORT_SECONDS = 120.0
NO_TIME = "the time of the run was up"
_HARMLESS_FAULTS = ("raised", "launch")  # after which the process can answer further calls


class DisplacedError(UsageError):
    """The working directory of the process is gone."""


class KernelProcess:
    """A process that imports a kernel and answers calls.

    zygote: the process to fork it from.
    name: of the kernel, for errors.
    order: see `worker_main.run_worker`.
    """

    zygote: ZygoteClient
    """It was forked from this process."""
    has_ended: bool
    """Whether it was ended, or ended itself."""
    is_fresh: bool
    """Whether it has had no call: the first one may have to compile."""
    description: dict[str, Any]
    """The function's own description of itself (see `describe_kernel`), from an untrusted process."""
    misfit: str
    """Why it interprets no Triton kernel; "" if it does, or need not."""
    walls: Mapping[str, bool]
    """Whether each of the `WALLS` holds around it, as it tried before it imported the kernel."""

    def __init__(self, zygote: ZygoteClient, name: str, order: Mapping[str, Any]) -> None:
        self.zygote, self._name = zygote, name
        self._child = Child(zygote, order)
        self.has_ended, self.is_fresh = False, True
        self.description, self.misfit, self.walls = {}, "", {}
        self._n_calls = 0

    def await_import(self, limit: float = _IMPORT_SECONDS) -> None:
        """Wait until the kernel is imported. Raises UsageError with the reason if it cannot be; the process then ends.

        limit: seconds for the import.

        After ProcessKilled, ZygoteLostError, DisplacedError and MachineLimit another process may be able to.
        """
        try:
            self._read_hello(limit)
        except ProcessKilled:
            self.end()
            raise
        except KernelFault as fault:
            self.end()
            raise UsageError(f"{self._name} cannot be imported: its process {fault}") from fault
        except BaseException:
            self.end()
            raise

    def _read_hello(self, limit: float) -> None:
        fork_limit = _FORK_SECONDS if self.zygote.has_answered else _START_SECONDS
        try:
            self._child.receive(Patience(fork_limit, 0), fork_limit)
        except KernelFault as fault:
            if fault.kind == "hung":  # nothing of the kernel has run: its zygote has been stopped
                raise ZygoteLostError(self.zygote) from fault
            raise
        hello = self._child.receive(Patience(limit, self._child.pid), limit)
        self.zygote.has_answered = True
        if hello.kind != "ready":
            raise _import_error(hello)
        self.description = dict(hello.body)
        self.misfit = str(self.description.pop("misfit", ""))
        self.walls = {str(name): bool(holds) for name, holds in self.description.pop("walls", {}).items()}

    def ask(self, call: Call, limit: float, until: float) -> Result:
        """The result of a call. After an error it ends, unless it can answer further calls.

        limit: seconds to wait.
        until: when to stop waiting in any case, by time.monotonic.

        Raises KernelFault, Refusal or ZygoteLostError; OutOfTime if there is no answer `until` then.
        """
        self._n_calls += 1
        self.is_fresh = False
        try:
            answer = self._child.ask(call_frame(call, self._n_calls), limit, call.max_result_bytes, until)
            return decode_answer(answer, call.outputs)
        except Refusal:
            raise
        except KernelFault as fault:
            if fault.kind not in _HARMLESS_FAULTS or call.mode == "graph":  # a failed capture may stay open
                self.end()
            if fault.kind == "hung" and time.monotonic() >= until:
                raise OutOfTime(NO_TIME) from fault
            raise
        except WireError as error:
            self.end()
            raise KernelFault("malformed", f"wrote into packproof's channel: {error}") from error
        except BaseException:  # Ctrl-C: the late answer would be taken for that of the next call
            self.end()
            raise

    def printed(self) -> list[str]:
        """The lines printed since the last call of this method, the last ones only."""
        return self._child.printed()

    def end(self) -> None:
        """End the process and all that it started."""
        if not self.has_ended:
            self.has_ended = True
            self._child.close()


def _import_error(hello: Frame) -> PackproofError:
    kinds: dict[str, type[PackproofError]] = {
        "crowded": MachineLimit,
        "displaced": DisplacedError,
        "unwalled": MissingWallError,
    }
    return kinds.get(hello.kind, UsageError)(str(hello.body.get("text", "the target cannot be imported")))
