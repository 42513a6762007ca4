"""Runs a kernel in a process of its own: it may crash, hang, exit or lie, and is replaced within milliseconds.

On a GPU a fresh process needs a second or more before it can compute. Once a process was lost there, a spare is kept
ready for the next loss.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from packproof.base.errors import KernelFault, OutOfTime, UsageError
from packproof.harness.process.child import CompilationTimeout, ZygoteLostError
from packproof.harness.process.kernel_process import NO_TIME, KernelProcess
from packproof.harness.process.memory_wait import MemoryWait, ProcessKilled
from packproof.harness.process.pace import Pace, tokens_of
from packproof.harness.process.process_supply import ProcessSupply
from packproof.harness.process.sharing import exclusive_device
from packproof.properties.calling import Call, MachineLimit, Result, SlowCompilation

_COMPILATION_FACTOR = 4  # times the limit of a call, for one that had to compile longer than that


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

    misfit: str
    """Why the opened process interprets no Triton kernel; "" if it does, or need not."""
    walls: Mapping[str, bool]
    """Whether each of the `WALLS` holds around the opened process; empty before."""

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
        self._supply = ProcessSupply(target, device, draw_configs=draw_configs)
        self._process: KernelProcess | None = None
        self._keeps_spare = False
        self.device, self.time_limit, self._until = device, time_limit, until
        self._warmup_limit = time_limit if warmup_limit is None else warmup_limit
        self._slowest = 0.0  # seconds of the slowest call
        self._pace, self._whole_limit = Pace(), time_limit
        self._has_exclusive_memory = False
        self.misfit = ""
        self.walls = {}

    def begin(self, *, warm: bool = True) -> None:
        """Start the process without waiting for it: several workers can import their targets at once. `open` waits."""
        if self._process is None:
            self._supply.start_spare(warm=warm)

    def open(self, *, warm: bool = True) -> None:
        """Start the process and import the target. Raises UsageError with the reason on failure.

        warm: also create the device's context, about a second. Another process may have filled the memory for it.
        """
        try:
            self._opened(warm=warm)
        except MachineLimit:
            with self._exclusive_memory():
                try:
                    self._opened(warm=warm)
                except MachineLimit as limit:
                    raise UsageError(str(limit)) from limit

    def _opened(self, *, warm: bool) -> KernelProcess:
        if self._process is None:
            self._process = self._supply.take(warm=warm)
            self.misfit, self.walls = self._process.misfit, self._process.walls
        return self._process

    def describe(self) -> dict[str, Any]:
        """The function's own description of itself (see `describe_kernel`): data from an untrusted process."""
        self.open(warm=False)
        return self._opened(warm=False).description

    def run(self, call: Call) -> Result:
        """Returns the result. Raises KernelFault or Refusal; OutOfTime if the run's time ends first; OutOfMemory.

        A call that needs the whole GPU memory waits for it and may use a quarter of the remaining time. A smaller call
        that ran out of memory is repeated once.
        """
        if self.device == "cpu":
            return self._call_with_retry(call, self._until)
        if not call.needs_large_memory:
            with suppress(MachineLimit):
                return self._call_with_retry(call, self._until)
        with self._exclusive_memory():
            if not call.needs_large_memory:
                return self._call_with_retry(call, self._until)
            start = time.monotonic()
            try:
                return self._call_with_retry(call, start + (self._until - start) / 4)
            except OutOfTime as error:
                self._require_time()
                raise MachineLimit(f"took more than {time.monotonic() - start:.0f} s") from error

    @contextmanager
    def _exclusive_memory(self) -> Iterator[None]:
        """While no other process may fill the memory of the device."""
        if self._has_exclusive_memory:
            yield
            return
        with exclusive_device(self.device, self._until):
            self._has_exclusive_memory = True
            try:
                yield
            finally:
                self._has_exclusive_memory = False

    def _call_with_retry(self, call: Call, until: float) -> Result:
        """Repeat a call once: if its process was killed, or with more time if it was still compiling."""
        try:
            return MemoryWait().repeat(lambda: self._call_once(call, until))
        except ProcessKilled:  # perhaps by another kernel: the fault counts only if it repeats
            return MemoryWait().repeat(lambda: self._call_once(call, until))
        except CompilationTimeout:
            return self._call_with_time_to_compile(call, until)

    def _call_with_time_to_compile(self, call: Call, until: float) -> Result:
        usual, self._warmup_limit = self._warmup_limit, _COMPILATION_FACTOR * self._warmup_limit
        try:
            return self._call_once(call, until)
        except CompilationTimeout as slow:
            raise SlowCompilation(f"it was still compiling after {self._warmup_limit:g} s") from slow
        finally:
            self._warmup_limit = usual

    def _call_once(self, call: Call, until: float) -> Result:
        self._require_time()
        if self._pace.is_too_slow(call):
            raise MachineLimit(f"{tokens_of(call):,} tokens are too slow to be judged: a call of fewer was")
        self.open()
        process = self._opened(warm=True)
        if self._keeps_spare:
            self._supply.start_spare()
        limit, start = self._warmup_limit if process.is_fresh else self.time_limit, time.monotonic()
        try:
            result = process.ask(call, limit, until)
        except ZygoteLostError as lost:
            raise self._supply.replace_zygote(process) from lost
        except KernelFault as fault:
            if fault.kind == "hung" and self._pace.may_take_longer(call, max(limit, self._whole_limit)):
                self._pace.record_too_slow(call)
                first_line = str(fault).partition("\n")[0]
                raise MachineLimit(f"{tokens_of(call):,} tokens are too slow to be judged: it {first_line}") from fault
            raise
        finally:
            if process.has_ended:
                self.restart()
        self._pace.record(call, time.monotonic() - start)
        self._slowest = max(self._slowest, time.monotonic() - start)
        return result

    def _require_time(self) -> None:
        if time.monotonic() >= self._until:
            raise OutOfTime(NO_TIME)

    def restart(self) -> None:
        """Drop the process and the kernel's state in it: the next call runs in a fresh one."""
        if self._process is not None:
            self._process.end()
            self._process = None
            self._keeps_spare |= self.device != "cpu"

    def printed_lines(self) -> list[str]:
        """The lines printed by the kernel since the last call of this method, the last ones only."""
        return self._process.printed() if self._process is not None else []

    @contextmanager
    def with_short_timeout(self) -> Iterator[None]:
        """Inside it a call counts as hung after ten times the slowest call so far, and at least a second."""
        limits = self.time_limit, self._warmup_limit
        self.time_limit = min(self.time_limit, max(1.0, 10 * self._slowest))
        self._warmup_limit = min(self._warmup_limit, self.time_limit)
        try:
            yield
        finally:
            self.time_limit, self._warmup_limit = limits

    def close(self) -> None:
        """Drop the process without starting another."""
        self.restart()
        self._supply.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
