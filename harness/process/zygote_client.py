"""The parent's side of a zygote: starts one at first use, and requests workers."""

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, cast

from packproof.base.errors import UsageError
from packproof.harness.process.execution.fork import print_error, start_fork
from packproof.harness.process.start.environment import ENVIRONMENT, missing_resource
from packproof.harness.process.start.imports import fast_imports
from packproof.harness.process.walls.isolation import Isolation

_FIXED_VARIABLES = {
    *ENVIRONMENT,
    "PYTHONPATH",
    "TRITON_INTERPRET",
}  # fixed in a zygote, whatever their values in the parent
_SPAWN_PROGRAM = f"from {__name__} import become_zygote; become_zygote()"
_MAX_SHOWN = 2000
_END_SECONDS = 10.0  # for a zygote to end its workers and itself

_isolation: Isolation = "usual"  # of the zygotes that this process starts

_private_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def keep_private(end: socket.socket) -> socket.socket:
    """Register a socket between packproof's processes, to be closed in every fork that will run a kernel."""
    _private_sockets.add(end)
    return end


class ZygoteClient:
    """A running zygote; `shared_zygote` and `fork_zygote` start one.

    `has_answered`: whether one of its workers has answered.
    pid: the child of this process that is killed if it does not end in time; 0 if there is none.

    A fork of the process that started it may also request workers, but does not end it.
    """

    def __init__(self, control: socket.socket, log: IO[bytes], wait: Callable[[], object], pid: int = 0) -> None:
        self._control = keep_private(control)
        self._log = log
        self._pid, self._wait = pid, wait
        self._owner = os.getpid()
        self._environment = dict(os.environ)
        self.has_answered = False

    def fork(self, order: Mapping[str, Any]) -> tuple[socket.socket, int, socket.socket]:
        """Request a worker with this process's environment. Returns its channel, its output pipe and its leash."""
        channel, child_channel = socket.socketpair()
        leash, child_leash = socket.socketpair()
        output, child_output = os.pipe()
        os.set_blocking(output, False)
        descriptors = [child_channel.fileno(), child_output, child_leash.fileno()]
        with suppress(ConnectionError):  # the leash reports a dead zygote
            packet = json.dumps({**order, "environment": self._environment_changes()}).encode()
            socket.send_fds(self._control, [packet], descriptors)
        child_channel.close()
        child_leash.close()
        os.close(child_output)
        return keep_private(channel), output, keep_private(leash)

    def start_serving(self, *, interpreted: bool, preload_compiler: bool) -> None:
        """Tell a zygote forked by `fork_early_zygote` to start serving."""
        with suppress(ConnectionError):
            order = {"interpreted": interpreted, "preload_compiler": preload_compiler, "isolation": _isolation}
            self._control.send(json.dumps(order).encode())

    def _environment_changes(self) -> dict[str, str | None]:
        """Changes of the environment since the zygote was started; None for a removed name."""
        names = {*self._environment, *os.environ} - _FIXED_VARIABLES
        return {n: os.environ.get(n) for n in names if os.environ.get(n) != self._environment.get(n)}

    def last_words(self) -> str:
        """The last lines printed by the zygote itself: why it ended."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _MAX_SHOWN, max(0, size - _MAX_SHOWN)).decode(errors="replace").strip()

    def close(self) -> None:
        """End the zygote and all its workers; in a fork only disconnect. Further calls do nothing."""
        if self._control.fileno() < 0:
            return
        is_owner = self._owner == os.getpid()
        with suppress(ConnectionError):
            if is_owner:
                self._control.send(b"")
        self._control.close()
        if is_owner:
            if self._pid:
                _kill_unless_ended(self._pid, _END_SECONDS)
            self._wait()
        self._log.close()


_shared_zygotes: dict[tuple[bool, Isolation], ZygoteClient] = {}


def shared_zygote(interpreted: bool) -> ZygoteClient:
    """The zygote with or without Triton's interpreter, of this process or its parent. It ends with its starter."""
    key = interpreted, _isolation
    if key not in _shared_zygotes:
        share_zygote(spawn_zygote(interpreted), interpreted=interpreted)
    return _shared_zygotes[key]


def share_zygote(client: ZygoteClient, *, interpreted: bool) -> None:
    """Make this the shared zygote of that kind, until this process ends."""
    _shared_zygotes[interpreted, _isolation] = client
    atexit.register(client.close)


def discard(client: ZygoteClient) -> None:
    """Close an unusable zygote: the next worker comes from a new one."""
    client.close()
    for key in [key for key, shared_client in _shared_zygotes.items() if shared_client is client]:
        del _shared_zygotes[key]


def set_isolation(isolation: Isolation) -> None:
    """Set the walls around the zygotes that this process and its forks start from now on."""
    global _isolation  # noqa: PLW0603
    _isolation = isolation


def spawn_zygote(interpreted: bool) -> ZygoteClient:
    """A new zygote, with or without Triton's interpreter. The caller closes it."""
    _require_resources()
    environment = os.environ | fixed_environment(interpreted=interpreted)
    control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115
    private_directory = "" if working_directory() else tempfile.mkdtemp(prefix="packproof-")  # torch's import needs one
    with child_end:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                _SPAWN_PROGRAM,
                str(child_end.fileno()),
                _isolation,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[child_end.fileno()],
            start_new_session=True,
            env=environment,
            cwd=private_directory or None,
        )

    def wait() -> None:
        process.wait()
        if private_directory:
            shutil.rmtree(private_directory, ignore_errors=True)

    return ZygoteClient(control, log, wait, process.pid)


def become_zygote() -> None:
    """Be a zygote. The arguments of this process are the descriptor of the control socket, and the isolation."""
    try:
        with fast_imports():
            from packproof.harness.process.zygote import serve  # noqa: PLC0415

        serve(socket.socket(fileno=int(sys.argv[1])), isolation=cast("Isolation", sys.argv[2]))
    except Exception as error:
        print_error(error)


def fixed_environment(*, interpreted: bool) -> dict[str, str]:
    """The fixed part of a zygote's environment."""
    path = os.pathsep.join(import_path())
    return {**ENVIRONMENT, "PYTHONPATH": path, "TRITON_INTERPRET": "1" if interpreted else "0"}


def fork_zygote(function: Callable[..., Any]) -> ZygoteClient:
    """A zygote forked from this very process, for a function no other process could import."""
    from packproof.harness.process.zygote import serve  # noqa: PLC0415  (imports torch, not needed before)

    return fork_client(lambda control: serve(control, function, isolation=_isolation))


def fork_client(become: Callable[[socket.socket], None]) -> ZygoteClient:
    """A zygote forked from this process. become: serves the control socket in it."""
    _require_resources()
    control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115

    def run() -> None:
        from packproof.harness.process.worker_main import redirect_output  # noqa: PLC0415  (torch)

        control.close()
        for end in list(_private_sockets):
            end.close()
        os.setsid()
        redirect_output(log.fileno())
        become(child_end)

    fork = start_fork(run, ends_with_parent=False)  # it outlives the parent, to end what workers have left running
    child_end.close()
    return ZygoteClient(control, log, fork.wait, fork.pid)


def _kill_unless_ended(pid: int, seconds: float) -> None:
    """Kill a child of this process if it does not end in time: something has stopped it."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return  # the calling program has waited for it
    poll = select.poll()
    poll.register(process, select.POLLIN)
    if not poll.poll(1000 * seconds):
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)


def _require_resources() -> None:
    """Raises UsageError if the system lacks something needed by zygotes and workers."""
    if reason := missing_resource():
        raise UsageError(reason)


def import_path() -> list[str]:
    """sys.path with absolute entries, for a process in any directory; without entries below a deleted directory."""
    cwd = working_directory()
    if not cwd:
        return [entry for entry in sys.path if os.path.isabs(entry)]
    return [os.path.join(cwd, entry) if entry else cwd for entry in sys.path]


def working_directory() -> str:
    """The working directory; "" if a kernel or anyone else has deleted it."""
    try:
        return os.getcwd()
    except OSError:
        return ""
