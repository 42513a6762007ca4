"""Runs a kernel in a process of its own: it may crash, hang, exit or lie, and is replaced within milliseconds.

On a GPU a fresh process needs a second or more before it can compute. Once a process was lost there, a spare is kept
ready for the next loss.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from packproof.harness.targets.location import Location
from packproof.harness.worker.child import Child, CompilationTimeout, ProcessKilled, ZygoteLostError
from packproof.harness.worker.patience import Patience
from packproof.harness.worker.privilege import concealment
from packproof.harness.worker.sharing import exclusive_device
from packproof.harness.worker.wire import WireError, call_frame, decode_answer
from packproof.harness.worker.zygote_client import (
    ZygoteClient,
    are_zygotes_isolated,
    discard,
    fork_zygote,
    import_path,
    shared_zygote,
    spawn_zygote,
    working_directory,
)
from packproof.properties.call import Call, KernelFault, MachineLimit, OutOfTime, Refusal, Result, SlowCompilation
from packproof.refs.errors import BrokenInstallation, UsageError

_IMPORT_LIMIT = 120.0
_NO_TIME = "the time of the run was up"
_COMPILING = 4  # times the limit of a call, for one that had to compile longer than that
_STARTS = 3  # of processes that are killed before their first frame


class Worker:
    """A Runner whose kernel lives in a child process; after a fault the next call runs in a fresh one.

    target: "package.module:function", "path/file.py:function", or a function. A function without an importable name (a
    closure) runs in a fork of this process, on the CPU only.
    device: "cpu", with Triton kernels interpreted and sanitised, or "cuda", "cuda:1" and so on.
    time_limit: seconds for one call.
    warmup_limit: the same for the first call of a process, which may have to compile; time_limit by default.
    draw_configs: see `tuning.draw_configurations`.
    until: when every call ends, by time.monotonic.
    """

    def __init__(
        self,
        target: str | Callable[..., Any],
        device: str = "cpu",
        time_limit: float = 10.0,
        warmup_limit: float | None = None,
        *,
        draw_configs: bool = False,
        until: float = math.inf,
    ) -> None:
        self._target, self._until = target, until
        self._name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
        self.device = device
        self._time_limit = time_limit
        self._warmup_limit = time_limit if warmup_limit is None else warmup_limit
        self._limit = self._warmup_limit
        self._location = Location.parse(target) if isinstance(target, str) else Location.from_function(target)
        self._own_zygote: ZygoteClient | None = None
        self._apart = False  # it has a zygote of its own: no other kernel can have ended it
        self._child: Child | None = None
        self._spare: Child | None = None  # has imported the target and checked the device, and has run nothing
        self._keeps_spare = False
        self._hiding = ExitStack()  # conceals this process while a kernel's process may exist
        self._draw_configs = draw_configs
        self._description: dict[str, Any] = {}
        self._misfit = ""
        self._number = 0
        self._slowest = 0.0
        self._is_alone = False
        self._is_displaced = False  # this process's working directory cannot be entered
        if self._location is None and device != "cpu":
            raise UsageError(
                f"{self._name} cannot be imported by name, so it cannot run on {device}: put it at the top level "
                "of a module and name it as package.module:function or path/file.py:function"
            )

    def begin(self, *, warm: bool = True) -> None:
        """Start the process without waiting for it: several workers can import their targets at once. `open` waits."""
        if self._child is None and self._spare is None:
            self._spare = self._started(warm=warm)

    def open(self, *, warm: bool = True) -> None:
        """Start the process and import the target. Raises UsageError with the reason on failure.

        warm: also create the device's context, about a second. Another process may have filled the memory for it.
        """
        try:
            self._open_despite_losses(warm=warm)
        except MachineLimit:
            with self._alone():
                try:
                    self._open_despite_losses(warm=warm)
                except MachineLimit as limit:
                    raise UsageError(str(limit)) from limit

    def _open_despite_losses(self, *, warm: bool) -> None:
        for left in reversed(range(_STARTS)):
            try:
                self._open(warm=warm)
            except ZygoteLostError as lost:  # ended by an earlier kernel, or by one of another worker
                if not lost.was_killed:
                    raise BrokenInstallation(str(lost)) from lost
                if not left:
                    raise
            except ProcessKilled as fault:
                if not left:
                    raise UsageError(f"{self._name} cannot be imported: its process {fault}") from fault
            else:
                return

    def _open(self, *, warm: bool) -> None:
        if self._child is not None:
            return
        self._child, self._spare = self._spare or self._started(warm=warm), None
        zygote, self._limit = self._child.zygote, self._warmup_limit
        try:
            begun = self._child.receive(Patience(_IMPORT_LIMIT, 0), _IMPORT_LIMIT)
            self._child.pid = 0 if are_zygotes_isolated() else begun.body["pid"]
            hello = self._child.receive(Patience(_IMPORT_LIMIT, self._child.pid), _IMPORT_LIMIT)
        except ProcessKilled:
            self.restart()
            raise
        except KernelFault as fault:
            self.restart()
            raise UsageError(f"{self._name} cannot be imported: its process {fault}") from fault
        except ZygoteLostError:
            self._forget_zygote()
            raise
        except BaseException:
            self.restart()
            raise
        zygote.has_answered = True
        if hello.kind == "displaced" and not self._is_displaced:
            self._is_displaced = True
            self.restart()
            self._open(warm=warm)
            return
        if hello.kind != "ready":
            self.restart()
            kind = MachineLimit if hello.kind == "crowded" else UsageError
            raise kind(str(hello.body.get("text", "the target cannot be imported")))
        self._description = dict(hello.body)
        self._misfit = str(self._description.pop("misfit", ""))

    def _started(self, *, warm: bool = True) -> Child:
        order = {
            "location": self._location and [self._location.module, self._location.file, self._location.qualname],
            "device": self.device,
            "warm": warm,
            "draw_configs": self._draw_configs,
            "sys_path": import_path(),
            "cwd": "" if self._is_displaced else working_directory(),
        }
        before, self._hiding = self._hiding, ExitStack()
        self._hiding.enter_context(concealment())
        before.close()
        return Child(self._zygote(), order)

    def describe(self) -> dict[str, Any]:
        """The function's own description of itself (see `describe`): data from an untrusted process."""
        self.open(warm=False)
        return self._description

    @property
    def misfit(self) -> str:
        """Why an opened process interprets no Triton kernel; "" if it does, or need not."""
        return self._misfit

    def run(self, call: Call) -> Result:
        """Returns the result. Raises KernelFault or Refusal; OutOfTime if the run's time ends first.

        A call that needs the whole GPU memory waits for it and may use a quarter of the remaining time. A smaller call
        that ran out of memory is repeated once.
        """
        if self.device == "cpu":
            return self._run_again(call, self._until)
        if not call.needs_large_memory:
            with suppress(MachineLimit):
                return self._run_again(call, self._until)
        with self._alone():
            if not call.needs_large_memory:
                return self._run_again(call, self._until)
            now = time.monotonic()
            try:
                return self._run_again(call, now + (self._until - now) / 4)
            except OutOfTime as error:
                self._require_time()
                raise MachineLimit(f"took more than {time.monotonic() - now:.0f} s") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process may fill the memory of the device."""
        if self._is_alone:
            yield
            return
        with exclusive_device(self.device, self._until):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False

    def _run_again(self, call: Call, until: float) -> Result:
        try:
            return self._run(call, until)
        except ProcessKilled:  # perhaps by another kernel or the system: the fault counts only if it repeats
            return self._run(call, until)
        except CompilationTimeout:
            return self._run_compiling(call, until)

    def _run_compiling(self, call: Call, until: float) -> Result:
        """Repeat the call with more time, to compile. Raises SlowCompilation if it is not enough."""
        usual, self._warmup_limit = self._warmup_limit, _COMPILING * self._warmup_limit
        try:
            return self._run(call, until)
        except CompilationTimeout as slow:
            raise SlowCompilation(f"it was still compiling after {self._warmup_limit:g} s") from slow
        finally:
            self._warmup_limit = usual

    def _run(self, call: Call, until: float) -> Result:
        self._require_time()
        self._number += 1
        frame = call_frame(call, self._number)
        self.open()
        assert self._child is not None
        if self._keeps_spare and self._spare is None:
            self._spare = self._started()
        limit, self._limit = self._limit, self._time_limit
        started = time.monotonic()
        try:
            answer = decode_answer(self._child.ask(frame, limit, call.max_result_bytes, until), call.outputs)
            self._slowest = max(self._slowest, time.monotonic() - started)
            return answer
        except KernelFault as fault:
            if fault.kind not in ("raised", "launch") or call.mode == "graph":  # a failed capture may stay open
                self.restart()
            if fault.kind == "hung" and time.monotonic() >= until:
                raise OutOfTime(_NO_TIME) from fault
            raise
        except WireError as error:
            self.restart()
            raise KernelFault("malformed", f"wrote into packproof's channel: {error}") from error
        except ZygoteLostError as error:
            self._forget_zygote()
            text = "ended the process that had started it"
            if self._apart:  # no other kernel runs there
                raise KernelFault("killed", text) from error
            self._apart = self._location is not None
            raise ProcessKilled("killed", text) from error
        except Refusal:
            raise
        except BaseException:  # Ctrl-C: the late answer would be taken for that of the next call
            self.restart()
            raise

    def _require_time(self) -> None:
        if time.monotonic() >= self._until:
            raise OutOfTime(_NO_TIME)

    def restart(self) -> None:
        """Drop the process and the kernel's state in it: the next call runs in a fresh one."""
        if self._child is not None:
            self._child.close()
            self._child = None
            self._keeps_spare |= self.device != "cpu"

    @property
    def time_limit(self) -> float:
        return self._time_limit

    def printed_lines(self) -> list[str]:
        """The lines printed by the kernel since the last call of this method, the last ones only."""
        return self._child.printed() if self._child is not None else []

    @contextmanager
    def with_short_timeout(self) -> Iterator[None]:
        """Inside it a call counts as hung after ten times the slowest call so far, and at least a second."""
        kept = self._time_limit, self._warmup_limit
        self._time_limit = min(self._time_limit, max(1.0, 10 * self._slowest))
        self._warmup_limit = self._limit = min(self._warmup_limit, self._time_limit)
        try:
            yield
        finally:
            self._time_limit, self._warmup_limit = kept

    def close(self) -> None:
        """Drop the process without starting another."""
        self.restart()
        self._drop_spare()
        if self._own_zygote is not None:
            self._own_zygote.close()
            self._own_zygote = None
        self._hiding.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _zygote(self) -> ZygoteClient:
        if self._location is not None and not self._apart:
            return shared_zygote(interpreted=self.device == "cpu")
        if self._own_zygote is None and self._location is not None:
            self._own_zygote = spawn_zygote(interpreted=self.device == "cpu")
        if self._own_zygote is None:
            assert callable(self._target)
            self._own_zygote = fork_zygote(self._target)
        return self._own_zygote

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _forget_zygote(self) -> None:
        assert self._child is not None
        discard(self._child.zygote)
        self.restart()
        self._drop_spare()  # it ended with the zygote
        self._own_zygote = None
