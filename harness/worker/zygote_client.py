"""The parent's side of a zygote: starts one when it is first needed, and requests workers."""

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, NoReturn

from packproof.harness.worker.settled import ENVIRONMENT, importing, interrupts_later, lacking
from packproof.refs.errors import PackproofError, UsageError

_SETTLED = {*ENVIRONMENT, "PYTHONPATH", "TRITON_INTERPRET"}  # fixed in a zygote, whatever the parent has
_SPAWNED = f"from {__name__} import become_zygote; become_zygote()"
_TAIL = 2000

_prefix: tuple[str, ...] = ()  # before the command of each zygote that this process starts

_private: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def keep_private(end: socket.socket) -> socket.socket:
    """Close it in every fork of this process that will run a kernel: packproof's processes communicate through it."""
    _private.add(end)
    return end


class ZygoteClient:
    """A running zygote; `shared` and `forked` start one. proven: one of its workers has answered.

    A fork of the process that started it may also request workers, but does not end it.
    """

    def __init__(self, control: socket.socket, log: IO[bytes], wait: Callable[[], object]) -> None:
        self._control = keep_private(control)
        self._log = log
        self._wait = wait
        self._owner = os.getpid()
        self._environment = dict(os.environ)
        self.proven = False

    def fork(self, order: Mapping[str, Any]) -> tuple[socket.socket, int, socket.socket]:
        """Request a worker, which sees this process's environment. Returns its channel, the read end of the pipe
        that it prints into, and its leash.
        """
        channel, its_channel = socket.socketpair()
        leash, its_leash = socket.socketpair()
        output, its_output = os.pipe()
        os.set_blocking(output, False)
        descriptors = [its_channel.fileno(), its_output, its_leash.fileno()]
        with suppress(ConnectionError):  # the leash reports a zygote that is gone
            packet = json.dumps({**order, "environment": self._changes()}).encode()
            socket.send_fds(self._control, [packet], descriptors)
        its_channel.close()
        its_leash.close()
        os.close(its_output)
        return keep_private(channel), output, keep_private(leash)

    def settle(self, *, interpreted: bool, late: bool) -> None:
        """Answer the zygote that `early` has forked."""
        with suppress(ConnectionError):
            self._control.send(bytes([interpreted, late]))

    def _changes(self) -> dict[str, str | None]:
        """Changes of the environment since the zygote was started; None for a name that was removed."""
        names = {*self._environment, *os.environ} - _SETTLED
        return {n: os.environ.get(n) for n in names if os.environ.get(n) != self._environment.get(n)}

    def last_words(self) -> str:
        """The last lines that the zygote itself printed: why it ended."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _TAIL, max(0, size - _TAIL)).decode(errors="replace").strip()

    def close(self) -> None:
        """End the zygote and all its workers; in a fork only disconnect. Further calls do nothing."""
        if self._control.fileno() < 0:
            return
        mine = self._owner == os.getpid()
        with suppress(ConnectionError):
            if mine:
                self._control.send(b"")
        self._control.close()
        if mine:
            self._wait()
        self._log.close()


_shared: dict[bool, ZygoteClient] = {}
_early: ZygoteClient | None = None


def shared(interpreted: bool) -> ZygoteClient:
    """The zygote with or without Triton's interpreter, of this process or its parent; it ends with its starter."""
    if interpreted not in _shared:
        _share(spawned(interpreted), interpreted=interpreted)
    return _shared[interpreted]


def _share(client: ZygoteClient, *, interpreted: bool) -> None:
    _shared[interpreted] = client
    atexit.register(client.close)


def discard(client: ZygoteClient) -> None:
    """Close a zygote that can no longer be used, so that the next worker comes from a new one."""
    client.close()
    for key in [key for key, other in _shared.items() if other is client]:
        del _shared[key]


def isolate(prefix: tuple[str, ...]) -> None:
    """Start the zygotes of this process and of its forks from now on by a command that isolates them."""
    global _prefix  # noqa: PLW0603
    _prefix = prefix


def are_isolated() -> bool:
    """Whether zygotes run in their own process namespace, whose ids mean nothing here."""
    return bool(_prefix)


def spawned(interpreted: bool) -> ZygoteClient:
    """A new zygote, with or without Triton's interpreter; the caller closes it."""
    _require_means()
    environment = os.environ | _environment(interpreted=interpreted)
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115
    private = "" if working_directory() else tempfile.mkdtemp(prefix="packproof-")  # torch cannot be imported in none
    with theirs:
        process = subprocess.Popen(
            [*_prefix, sys.executable, "-P", "-c", _SPAWNED, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env=environment,
            cwd=private or None,
        )

    def wait() -> None:
        process.wait()
        if private:
            shutil.rmtree(private, ignore_errors=True)

    return ZygoteClient(control, log, wait)


def become_zygote() -> None:
    """Be a zygote, in a process started for that whose argument is the descriptor of its control socket."""
    try:
        with importing():
            from packproof.harness.worker.zygote import serve  # noqa: PLC0415

        serve(socket.socket(fileno=int(sys.argv[1])))
    except Exception as error:
        _print_last_words(error)


def _environment(*, interpreted: bool) -> dict[str, str]:
    """What is fixed in the environment of a zygote."""
    path = os.pathsep.join(import_path())
    return {**ENVIRONMENT, "PYTHONPATH": path, "TRITON_INTERPRET": "1" if interpreted else "0"}


def forked(function: Callable[..., Any]) -> ZygoteClient:
    """A zygote that is a fork of this very process, for a function that no other process could import."""
    from packproof.harness.worker.zygote import serve  # noqa: PLC0415  (torch: the shared zygote starts before it is here)

    return _fork(lambda control: serve(control, function))


def early() -> None:
    """Import torch and fork the shared zygote, which `settle` or `close_early` answers.

    For a process that `is_fresh`: it has one thread and has not used CUDA.
    """
    global _early  # noqa: PLW0603
    with importing():
        from packproof.harness.worker.zygote import serve  # noqa: PLC0415

    def become(control: socket.socket) -> None:
        _close_all_but(control)
        answer = control.recv(2)
        if answer:
            interpreted, late = map(bool, answer)
            os.environ.update(_environment(interpreted=interpreted))
            serve(control, late=late)

    _early = _fork(become)


def settle(*, interpreted: bool, late: bool) -> None:
    """Let the zygote that `early` has forked, if it has, be the shared one, once it is known whether Triton is
    interpreted there, and whether several of its workers will use torch's compiler (late)."""
    if _early is not None:
        _share(_early, interpreted=interpreted)
        _early.settle(interpreted=interpreted, late=late)


def close_early() -> None:
    """End the zygote that `early` has forked, if it has: another one is needed."""
    if _early is not None:
        _early.close()


def _fork(become: Callable[[socket.socket], None]) -> ZygoteClient:
    """A zygote that is a fork of this process, in which `become` serves the control socket."""
    _require_means()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tempfile.TemporaryFile()  # noqa: SIM115
    with warnings.catch_warnings(), interrupts_later():
        warnings.simplefilter("ignore", DeprecationWarning)  # about other threads, none of which the child runs
        pid = os.fork()
        if pid == 0:
            _become_zygote(become, control, theirs, log)
    theirs.close()

    def wait() -> None:
        with suppress(ChildProcessError):  # a handler of the program that called packproof may have waited for it
            os.waitpid(pid, 0)

    return ZygoteClient(control, log, wait)


def _require_means() -> None:
    """Raises UsageError where the system does not give what zygotes and workers need."""
    if reason := lacking():
        raise UsageError(reason)


def _become_zygote(
    become: Callable[[socket.socket], None], parents: socket.socket, control: socket.socket, log: IO[bytes]
) -> NoReturn:
    try:
        from packproof.harness.worker.worker_main import speak_into  # noqa: PLC0415  (torch)

        parents.close()
        for end in list(_private):
            end.close()
        os.setsid()
        speak_into(log.fileno())
        become(control)
    except Exception as error:
        _print_last_words(error)
    except BaseException:  # no frame above may see it: those belong to the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _print_last_words(error: Exception) -> None:
    """What the parent will report: the text of an expected error, the line of an import that fails; else all of it."""
    if isinstance(error, PackproofError):
        print(error, file=sys.stderr)
    elif isinstance(error, ImportError | MemoryError):
        from packproof.adapters.importing import reason  # noqa: PLC0415

        print(reason(error), file=sys.stderr)
    else:
        traceback.print_exception(error)


def _close_all_but(control: socket.socket) -> None:
    """Close what this process has inherited, as a program that is started does; 0, 1 and 2 are its own by now."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control.fileno():
            with suppress(OSError):
                os.close(int(name))


def import_path() -> list[str]:
    """sys.path with absolute entries, for a process in any directory; without those below a directory that is gone."""
    here = working_directory()
    if not here:
        return [entry for entry in sys.path if os.path.isabs(entry)]
    return [os.path.join(here, entry) if entry else here for entry in sys.path]


def working_directory() -> str:
    """The working directory, "" where it is gone, as after a kernel that has deleted it."""
    try:
        return os.getcwd()
    except OSError:
        return ""
