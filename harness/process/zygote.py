"""A process that has imported everything and forks workers from itself: a fresh worker costs milliseconds.

`multiprocessing`'s forkserver with preloaded modules was measured as an alternative (Python 3.11, two busy cores). The
first worker took 8.9 s, against 9.0 to 10.5 s to the first answer here. Another worker took 67 to 84 ms, against 130 to
190 ms here, which include a call, the snapshot of torch's functions and the end of the previous worker.

So it would start no slower, but it is less robust. When the server is killed its children keep running, with exit code
255 whatever they do; orders are pickled; any process of the same user may connect to its named socket; children are
joined one by one, and init adopts processes they leave in other sessions. To fix each of these would add the leash, the
death signal, the subreaper and the frames: most of this module.

It is a fork of the command, taken after nothing but the import of torch, if `fork_early_zygote` could fork it;
otherwise a process of its own. It starts no threads and never uses a GPU: neither would survive the fork. The parent
requests workers on the control socket, one packet each, and passes three descriptors: the worker's channel (frames of
`wire`), the pipe for its output, and its leash. On the leash the parent sends ABORT or KILL (closing it means KILL),
and the zygote reports how the worker ended, as `STATUS`.
"""

import importlib
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from packproof.harness.process.execution.fork import reset_signals, start_fork
from packproof.harness.process.execution.torch_state import TorchState
from packproof.harness.process.privilege import adopt_orphans, conceal, set_process_name
from packproof.harness.process.process_tree import end_children
from packproof.harness.process.start.imports import fast_imports
from packproof.harness.process.walls.enclosure import NO_MORE_WALLS, Enclosure
from packproof.harness.process.walls.isolation import Isolation
from packproof.harness.process.worker_main import import_compiler, run_worker
from packproof.interpreter import repair_or_refuse

PROCESS_NAME = "pp-zygote"  # of this process and its workers, in /proc/<pid>/comm
ABORT, KILL = b"A", b"K"
STATUS = struct.Struct("<iq")  # the wait status of a worker, and the most memory that it had, in KiB
_MAX_PACKET = 1 << 17
_IDLE_MS = 500


class Zygote:
    """The serving side.

    control: the socket for requests.
    function: the function of workers whose order names no location.
    enclosure: the walls around it and its workers; by default those that stand around this process already.
    preload_compiler: whether to import torch's compiler once idle, for several workers to use.
    """

    def __init__(
        self,
        control: socket.socket,
        function: Callable[..., Any] | None = None,
        *,
        enclosure: Enclosure = NO_MORE_WALLS,
        preload_compiler: bool = True,
    ) -> None:
        self._control, self._enclosure = control, enclosure
        self._function = function
        self._snapshot = _take_snapshot()
        self._idle_ms: int | None = _IDLE_MS if preload_compiler else None
        self._leashes: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._wake, self._bell = os.pipe()

    def serve(self) -> None:
        """Fork workers until the parent sends an empty packet or is gone; then end them all."""
        conceal()
        adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for end in (self._wake, self._bell):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        while True:
            ready = {number for number, _ in self._poll.poll(self._idle_ms)}
            if not ready:
                self._preload_compiler()
            if self._wake in ready:
                os.read(self._wake, 4096)
            for pid, leash in list(self._leashes.items()):
                if leash.fileno() in ready:
                    self._end_worker(pid, leash)
            self._reap_workers()
            if self._control.fileno() in ready and not self._fork_worker():
                break
        for pid in self._leashes:
            _signal_group(pid, signal.SIGKILL)
        for pid in list(self._leashes):
            os.waitpid(pid, 0)
            del self._leashes[pid]
        end_children()

    def _preload_compiler(self) -> None:
        """Import torch's compiler, needed by only some kernels, while the zygote is idle."""
        import_compiler()
        self._snapshot, self._idle_ms = _take_snapshot(), None

    def _fork_worker(self) -> bool:
        """Fork one worker as ordered; False if no more orders will come."""
        packet, descriptors, _, _ = socket.recv_fds(self._control, _MAX_PACKET, 3)
        if not packet:
            return False
        channel, output, leash = descriptors

        def run() -> int:
            self._close_inherited(leash)
            frames = socket.socket(fileno=channel)
            return run_worker(
                json.loads(packet), self._function, self._snapshot, self._enclosure, channel=frames, output=output
            )

        pid = start_fork(run).pid
        os.close(channel)
        os.close(output)
        self._leashes[pid] = socket.socket(fileno=leash)
        self._poll.register(leash, select.POLLIN)
        return True

    def _close_inherited(self, leash: int) -> None:
        """In the worker: close everything that belongs to the zygote."""
        for worker_leash in self._leashes.values():
            worker_leash.close()
        self._control.close()
        for end in (self._wake, self._bell, leash):
            os.close(end)

    def _end_worker(self, pid: int, leash: socket.socket) -> None:
        order = leash.recv(1)
        if not order:
            self._poll.unregister(leash)  # closed: it would stay ready forever
        _signal_group(pid, signal.SIGABRT if order == ABORT else signal.SIGKILL)
        _signal_group(pid, signal.SIGCONT)  # a stopped process would not react

    def _reap_workers(self) -> None:
        """Report every worker that has ended, and end every process it started."""
        for pid in list(self._leashes):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _signal_group(pid, signal.SIGKILL)  # its group: no other process gets the id before waitpid
            _, status, usage = os.wait4(pid, 0)
            with self._leashes.pop(pid) as leash, suppress(KeyError, OSError):  # the parent may have gone
                self._poll.unregister(leash)
                leash.sendall(STATUS.pack(status, usage.ru_maxrss))
        end_children(spared_pids=self._leashes)  # processes left by workers in other groups and sessions


def _take_snapshot() -> TorchState:
    """Snapshot the functions that workers watch, once: each worker would first copy the memory to read it."""
    state = TorchState()
    state.watch_packproof()
    return state


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a worker and all processes it started."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        os.kill(pid, number)  # not yet the head of a group


def serve(
    control: socket.socket,
    function: Callable[..., Any] | None = None,
    *,
    isolation: Isolation,
    preload_compiler: bool = True,
) -> None:
    """Run a zygote in a fork of this process, the keeper.

    This process ends the zygote and all descendants once the parent or the zygote is gone: a kernel may have killed it.
    """
    conceal()
    set_process_name(PROCESS_NAME)
    adopt_orphans()
    reset_signals()
    enclosure = Enclosure.begin(isolation)

    def run() -> None:
        with fast_imports():
            prepare_imports(launches=function is None)  # a function runs on the CPU, where nothing compiled is launched
        enclosure.build()
        Zygote(control, function, enclosure=enclosure, preload_compiler=preload_compiler).serve()

    poll = select.poll()
    poll.register(os.pidfd_open(start_fork(run).pid), select.POLLIN)
    poll.register(control, 0)  # no packets, only the hang-up of the parent
    poll.poll()
    end_children()
    enclosure.end()


def prepare_imports(*, launches: bool = True) -> None:
    """Import the modules needed by workers; repair Triton's interpreter if it is on.

    launches: whether workers may launch compiled Triton kernels.
    """
    if find_spec("triton") is None:
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        repair_or_refuse()
    elif launches:
        _hash_triton()


def _hash_triton() -> None:
    """Let Triton hash its own files, 400 MB, and cache the result: every worker needs it to launch."""
    with suppress(ImportError, AttributeError):  # a private name: without it each worker computes the hash
        importlib.import_module("triton.runtime.cache").triton_key()
