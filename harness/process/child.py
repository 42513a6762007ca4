"""One worker process seen from its parent: sends frames, waits for frames, and reports how the process ended."""

import os
import re
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from packproof.base.errors import KernelFault, PackproofError
from packproof.harness.process.memory_wait import MemoryWatch, ProcessKilled
from packproof.harness.process.patience import Patience
from packproof.harness.process.process_tree import has_started_too_many, max_started
from packproof.harness.process.walls.probes import judge_identity
from packproof.harness.process.wire import READ_BYTES, Decoder, Frame, WireError, encode
from packproof.harness.process.worker_main import CHANNEL_LOST
from packproof.harness.process.zygote import ABORT, KILL, STATUS
from packproof.harness.process.zygote_client import ZygoteClient

KILLED = "killed by SIGKILL (Killed)"  # as by the system, where memory has run out
_SO_PASSCRED, _SCM_CREDENTIALS, _CREDENTIALS = 16, 2, struct.Struct("<iII")
_GRACE_SECONDS = 2.0
_ABORT_SECONDS = 20.0  # seconds for an aborted process to print its stack; a busy machine delays it
_MAX_SHOWN = 2000  # characters of its output in a message
_MAX_KEPT = 1 << 16  # bytes of its output kept: a stack may have a hundred frames, and the crash is in its first ones
# lines of faulthandler that do not help the author of a kernel
_NOISE = (
    *("Fatal Python error:", "Current thread", "Extension modules:", "Stack (most recent call first)"),
    '  File "<frozen importlib',
)
# frames on the stack while a kernel is compiled, or waits for another process that compiles it, absent while it runs
_COMPILER_FRAME = re.compile(
    rb'File "[^"]*/(torch/_dynamo/(convert_frame|symbolic_convert|output_graph|variables/)'
    rb"|torch/_inductor/(compile_fx|graph|scheduler|lowering|ir|codegen/|fx_passes/|async_compile|codecache|cpp_builder)"
    rb"|torch/_functorch/_aot_autograd/(graph_capture|graph_compile)|triton/(compiler|backends)/"
    rb"|torch/utils/cpp_extension\.py|flashinfer/jit/|tvm_ffi/cpp/|deep_gemm/jit/|tilelang/(engine/|contrib/nvcc)"
    rb"|cutlass/base_dsl/(compiler\.py|dsl\.py\", line \d+ in (generate_original_ir|compile_and_cache))"
    rb"|cuda/core/_program|numba/core/(compiler|codegen|lowering|typeinfer))"
)
# packproof's frames that call or import a kernel; all frames after them are packproof's own
_HARNESS_FRAMES = tuple(
    f"{os.sep}{room}{os.sep}{file}.py"
    for room, file in (
        *(("execution", "invocation"), ("base", "importing"), ("naming", "location")),
        *(("running", "local_module"), ("models", "target")),
    )
)


class ZygoteLostError(PackproofError):
    """The zygote that forked the worker has ended, and the worker with it.

    `was_killed`: the zygote had served, or printed nothing. Otherwise it could not start.
    """

    def __init__(self, zygote: ZygoteClient) -> None:
        words = zygote.last_words()
        super().__init__(f"the process that starts workers is gone: {words or 'it printed nothing'}")
        self.was_killed = zygote.has_answered or not words


class CompilationTimeout(KernelFault):
    """The process gave no answer in time and was still compiling."""


class Child:
    """A worker forked from a zygote.

    zygote: the process to fork from.
    order: what the worker does, see `worker_main.run_worker`. With "cwd" empty, the worker gets a temporary directory,
    removed at its end: a kernel must not delete files in a directory no one has chosen.
    """

    def __init__(self, zygote: ZygoteClient, order: Mapping[str, Any]) -> None:
        self.zygote = zygote
        self._magic = os.urandom(16)
        self._private_directory = "" if order["cwd"] else tempfile.mkdtemp(prefix="packproof-")
        complete_order = {
            **order,
            "cwd": order["cwd"] or self._private_directory,
            "magic": self._magic.hex(),
            "judge": judge_identity(),
        }
        self._channel, self._output, self._leash = zygote.fork(complete_order)
        self._channel.setblocking(False)
        self._channel.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        self._decoder = Decoder(self._magic)
        self.pid = 0  # unknown until its first frame
        self._memory_watch = MemoryWatch()
        self._tail = b""
        self._status: int | None = None
        self._peak_bytes = 0  # of its memory, once it has ended
        self._hung_up = False  # the worker has closed its end of the channel; `_silent`: of its output
        self._silent = False
        self._poll = select.poll()
        for end in (self._channel, self._output, self._leash):
            self._poll.register(end, select.POLLIN)

    def ask(self, frame: Frame, limit: float, max_result_bytes: int, deadline: float) -> Frame:
        """Send a frame and wait for its answer. Raises KernelFault if no answer comes, or the answer to another call.

        limit: seconds to wait.
        max_result_bytes: bytes of the answer's tensors, at most.
        deadline: when to stop waiting in any case, by time.monotonic.
        """
        self._decoder.max_tensors, self._memory_watch = max_result_bytes, MemoryWatch()
        patience = Patience(limit, self.pid, deadline)
        self._channel.settimeout(limit)
        with suppress(ConnectionError, TimeoutError):  # receive() reports how the process ended
            self._channel.sendall(encode(frame, self._magic))
        self._channel.setblocking(False)
        answer = self.receive(patience, limit)
        if answer.number != frame.number or not self._decoder.empty:
            raise KernelFault("malformed", "wrote into packproof's channel: an answer to no call")
        return answer

    def pass_socket(self, end: socket.socket) -> None:
        """Hand a socket to the process, which takes it after its first frame."""
        with suppress(ConnectionError):  # receive() reports how the process ended
            socket.send_fds(self._channel, [b"\0"], [end.fileno()])

    def receive(self, patience: Patience, limit: float) -> Frame:
        """Wait for the next frame. limit: the seconds in an error message."""
        while True:
            try:
                frame = self._decoder.take()
            except WireError as error:
                raise KernelFault(
                    "malformed", f"wrote into packproof's channel: {error}{self._quoted_output()}"
                ) from error
            if frame is not None:
                return frame
            if self._status is not None or self._hung_up:
                raise self._death_as_fault()
            remaining = patience.seconds_left()
            if remaining <= 0:
                self._end(ABORT)  # faulthandler then prints its stack
                kind = CompilationTimeout if _COMPILER_FRAME.search(self._tail) else KernelFault
                raise kind("hung", f"gave no answer within {limit:g} s{self._quoted_output()}")
            if not self._listen(remaining) and has_started_too_many(self.pid):
                self._end(KILL)
                raise KernelFault("malformed", f"started more than {max_started()} processes{self._quoted_output()}")

    def printed(self) -> list[str]:
        """Return the last lines printed by the process, and forget them."""
        while not self._silent and self._read_output():
            pass
        lines, self._tail = self._lines(), b""
        return lines

    def close(self) -> None:
        """End the process if it still runs, and all processes it started."""
        if self._status is None:
            with suppress(OSError):
                self._leash.send(KILL)
        if self._private_directory:
            self._remove_private()
        self._channel.close()
        self._leash.close()
        os.close(self._output)

    def _remove_private(self) -> None:
        """Remove its temporary directory after it has ended."""
        with suppress(OSError, ZygoteLostError):
            self._await_death(_GRACE_SECONDS)
        shutil.rmtree(self._private_directory, ignore_errors=True)

    def _listen(self, seconds: float) -> bool:
        """Receive whatever arrives first: a frame, printed text, or the report of its end. False if nothing does."""
        ready = {number for number, _ in self._poll.poll(max(seconds, 0) * 1000)}
        if self._output in ready:
            self._read_output()
        if self._channel.fileno() in ready:
            self._read_channel()
        if self._leash.fileno() in ready:
            self._read_leash()
        return bool(ready)

    def _read_output(self) -> bool:
        with suppress(BlockingIOError):
            data = os.read(self._output, 1 << 16)
            self._tail = (self._tail + data)[-_MAX_KEPT:]
            if not data and not self._silent:
                self._silent = True
                self._poll.unregister(self._output)
            return bool(data)
        return False

    def _read_channel(self) -> bool:
        try:
            data = self._channel.recv(READ_BYTES) if self.pid else self._receive_first()
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        self._decoder.feed(data)
        if not data:
            self._hung_up = True
            self._poll.unregister(self._channel)
        return bool(data)

    def _receive_first(self) -> bytes:
        """The first bytes, with which the system tells the id of their sender as it is known here."""
        data, messages, *_ = self._channel.recvmsg(READ_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        for _, kind, content in messages:
            if kind == _SCM_CREDENTIALS:
                self.pid = _CREDENTIALS.unpack(content)[0]
        return data

    def _read_leash(self) -> None:
        status = self._leash.recv(STATUS.size)
        if not status:
            raise ZygoteLostError(self.zygote)
        self._status, peak = STATUS.unpack(status)
        self._peak_bytes = 1024 * peak
        self._poll.unregister(self._leash)
        # frames sent before its death count
        while not self._hung_up and self._read_channel():
            pass
        for _ in range(64):
            if not self._read_output():
                break

    def _end(self, order: bytes) -> None:
        """Make the process end, and wait until it has."""
        for command, seconds in ((order, _ABORT_SECONDS), (KILL, _GRACE_SECONDS)):
            if self._status is None:
                self._leash.send(command)
            self._await_death(seconds)

    def _await_death(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._status is None and time.monotonic() < deadline:
            self._listen(deadline - time.monotonic())

    def _death_as_fault(self) -> KernelFault:
        self._await_death(_GRACE_SECONDS)
        if self._status is None or os.waitstatus_to_exitcode(self._status) == CHANNEL_LOST:
            return KernelFault("malformed", f"closed file descriptors that are not its own{self._quoted_output()}")
        code = os.waitstatus_to_exitcode(self._status)
        if code >= 0:
            return KernelFault("exited", f"exited with code {code} instead of returning{self._quoted_output()}")
        if -code == signal.SIGKILL:
            lacked_memory = self._memory_watch.explains_kill(self._peak_bytes)
            return ProcessKilled(f"{KILLED}{self._quoted_output()}", lacked_memory=lacked_memory)
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return KernelFault("crashed", f"killed by {name} ({signal.strsignal(-code)}){self._quoted_output()}")

    def _quoted_output(self) -> str:
        """The last lines printed by the process, indented below the message."""
        return "".join(f"\n    {line}" for line in self._lines())

    def _lines(self) -> list[str]:
        lines = self._tail.decode(errors="replace").splitlines()
        harness_start = next(
            (n for n, line in enumerate(lines) if any(frame in line for frame in _HARNESS_FRAMES)), None
        )
        kernel_lines = [line for line in lines[:harness_start] if line.strip() and not line.startswith(_NOISE)]
        return "\n".join(kernel_lines)[-_MAX_SHOWN:].splitlines()
