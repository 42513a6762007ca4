"""Generators side by side: each runs in a fork of this process, and their items come out in one stream.

A fork sends its items as `records` in frames of `wire`. An item counts only if it fits the expected type. The forks,
and this process meanwhile, are concealed from the processes that run kernels.
"""

import math
import os
import select
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from packproof.base.errors import PackproofError, UsageError
from packproof.base.machine import available_cores
from packproof.base.records import RecordError, from_json, to_json
from packproof.harness.process import gpus
from packproof.harness.process.execution.fork import Fork, defer_interrupts, start_fork
from packproof.harness.process.patience import Patience
from packproof.harness.process.privilege import conceal, concealment
from packproof.harness.process.sharing import Cores
from packproof.harness.process.wire import READ_BYTES, Decoder, Frame, WireError, encode
from packproof.harness.process.zygote_client import keep_private, shared_zygote

T = TypeVar("T")

_LONGEST_WAIT = 3600.0  # seconds; poll takes no infinity
_STOP_LOOK = 2.0  # seconds between two looks whether a unit has been stopped
_MAX_PROCESSES = 32  # each process has torch threads for all cores

Unit = Callable[[], Iterator[T]]
Retry = Callable[[int, str], "Unit[T] | None"]


class UnitError(PackproofError):
    """A unit raised an exception other than packproof's own, or its process ended. The notes have the traceback."""


def run_on_every_core(
    units: Sequence[Unit[T]],
    device: str,
    *,
    record_type: Any,
    max_processes: int = _MAX_PROCESSES,
    retry: "Retry[T] | None" = None,
    deadline: float = math.inf,
    max_silence: float = math.inf,
    interpreted: bool | None = None,
) -> Iterator[T]:
    """Run the units side by side, one for each core. Their workers come from one zygote; torch has one thread in each.

    max_processes: units at a time, if there are as many cores.
    record_type, retry, deadline, max_silence: see `run_side_by_side`.
    interpreted: whether the zygote of their workers interprets Triton; None: on the CPU.

    On "cuda" the units are spread over the GPUs: the environment of a unit shows only its own GPU.
    """
    with ExitStack() as stack:
        stack.enter_context(concealment())
        # references have few tokens: torch's threads would only contend for cores
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        # start it before forking, else each unit starts its own
        shared_zygote(interpreted=device == "cpu" if interpreted is None else interpreted)
        placed_units = (
            [partial(_run_on_gpu, number, unit) for number, unit in enumerate(units)] if device == "cuda" else units
        )
        n_processes = min(available_cores(), max_processes)
        yield from run_side_by_side(
            placed_units, n_processes, record_type=record_type, retry=retry, deadline=deadline, max_silence=max_silence
        )


def differentiate_apart(function: Callable[[], object]) -> None:
    """Call a function that uses autograd; beside a GPU in a fork, so that this process can still run units in forks."""
    if torch.accelerator.current_accelerator() is None:
        function()
        return
    for _ in run_side_by_side([partial(_no_items, function)], 1, record_type=bool):
        pass


def _no_items(function: Callable[[], object]) -> Iterator[bool]:
    function()
    yield from ()


def _run_on_gpu(number: int, unit: Unit[T]) -> Iterator[T]:
    original = dict(os.environ)
    os.environ.update(gpus.gpu_environment(number))
    try:
        yield from unit()
    finally:
        os.environ.clear()
        os.environ.update(original)


def run_side_by_side(
    units: Sequence[Unit[T]],
    max_processes: int,
    *,
    record_type: Any,
    retry: "Retry[T] | None" = None,
    deadline: float = math.inf,
    max_silence: float = math.inf,
) -> Iterator[T]:
    """Run the units, at most `max_processes` at a time, started in order. Yields their items as they arrive.

    record_type: the type of the items.
    retry: given the number of a unit whose process ended and the reason, returns the unit to run instead, or None.
    deadline: when the remaining units are ended, by time.monotonic.
    max_silence: seconds without an item after which a unit is ended.

    An exception ends its own unit; the stream raises it once the others are done. Leaving the stream early, by an
    exception such as Ctrl-C or by closing it, ends every unit.

    No fork survives the use of autograd beside a GPU. If this process has used it so, the units run in this process,
    one after another.
    """
    errors: list[BaseException] = []
    try:
        with closing(
            _UnitPool(units, max_processes, record_type, retry, max_silence).events(deadline)
            if _can_fork_differentiate()
            else _run_sequentially(units)
        ) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, BaseException):
                    errors.append(event)
                else:
                    yield event
    except KeyboardInterrupt:
        if not errors:
            raise
    if errors:
        first_error, *other_errors = errors
        for error in other_errors:
            first_error.add_note(f"and beside it {type(error).__name__}: {error}")
        raise first_error


def _run_sequentially(units: Sequence[Unit[T]]) -> Iterator[T | BaseException]:
    """The items and exceptions of the units, one unit after another, in this process."""
    for unit in units:
        try:
            with closing(unit()) as events:  # type: ignore[type-var]
                yield from events
        except Exception as error:
            yield error


@dataclass
class _RunningUnit:
    """A unit and its process, seen from its parent."""

    number: int
    """Number of the unit."""
    process: Fork
    channel: socket.socket
    patience: Patience | None = None
    """Time until the next item is overdue; None for no limit."""
    decoder: Decoder = field(default_factory=Decoder)
    is_complete: bool = False
    """Whether its last frame has arrived."""

    def seconds_left(self) -> float:
        """Seconds until it is overdue, or needs another look."""
        return self.patience.seconds_left() if self.patience else _LONGEST_WAIT

    def is_stopped(self) -> bool:
        """Whether its process has been stopped, as by SIGSTOP of a kernel: it would never answer."""
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def receive(self, record_type: Any) -> Generator[Any, None, bool]:
        """The items received from it. Returns False at the end of its stream."""
        try:
            data = self.channel.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        self.decoder.feed(data)
        while frame := self.decoder.take():
            if frame.kind == "event":
                yield from_json(record_type, frame.body["event"])
            elif frame.kind == "error":
                yield _reported_error(frame)
            self.is_complete |= frame.kind in ("error", "end")
        return bool(data)

    def end(self) -> str:
        """Hang up, wait for the process, and report how it ended."""
        self.channel.close()
        code = self.process.wait() if self.is_complete else self.process.kill()
        if code is None:
            return "ended"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class _UnitPool(Generic[T]):
    """Units in forks of this process; see `run_side_by_side`."""

    def __init__(
        self,
        units: Sequence[Unit[T]],
        max_processes: int,
        record_type: Any,
        retry: "Retry[T] | None",
        max_silence: float = math.inf,
    ) -> None:
        self._waiting = deque(enumerate(units))
        self._running: dict[int, _RunningUnit] = {}  # by the descriptors of their channels
        self._cores = Cores(max_processes, len(units))
        self._record_type, self._retry, self._max_silence = record_type, retry, max_silence
        self._poll = select.poll()

    def events(self, deadline: float = math.inf) -> Iterator[T | BaseException]:
        """The items and exceptions of the units, as they arrive."""
        try:
            while (self._waiting or self._running) and (seconds_left := deadline - time.monotonic()) > 0:
                self._start_units()
                ready, overdue = self._await_items(seconds_left)
                for descriptor in ready:
                    yield from self._receive(self._running[descriptor])
                for descriptor in overdue:
                    yield from self._finish(self._running[descriptor], f"gave nothing for {self._max_silence:g} s")
                for unit in [unit for unit in self._running.values() if unit.is_stopped()]:
                    yield from self._finish(unit, "was stopped by a signal")
        finally:
            for unit in self._running.values():
                unit.end()

    def _start_units(self) -> None:
        """Start as many waiting units as cores are free, then let the running ones share the cores."""
        for _ in range(min(len(self._waiting), self._cores.n_startable(self._running_numbers()))):
            with defer_interrupts():  # whenever Ctrl-C ends the run, each fork is known
                unit = self._start(*self._waiting.popleft())
                self._running[unit.channel.fileno()] = unit
            self._poll.register(unit.channel, select.POLLIN)
        self._cores.share(self._running_numbers(), len(self._waiting))

    def _running_numbers(self) -> list[int]:
        return [unit.number for unit in self._running.values()]

    def _start(self, number: int, unit: Unit[T]) -> _RunningUnit:
        parent_end, child_end = socket.socketpair()
        self._cores.mark_running(number)

        def run() -> None:
            parent_end.close()
            self._cores.enter_fork(number)
            _send_items(unit, child_end)

        process = start_fork(run)
        child_end.close()
        return _RunningUnit(number, process, keep_private(parent_end), self._patience(process))

    def _patience(self, process: Fork) -> Patience | None:
        return Patience(self._max_silence, process.pid) if math.isfinite(self._max_silence) else None

    def _await_items(self, seconds: float) -> tuple[list[int], list[int]]:
        """Wait for items, or until something else is due. The descriptors of ready units, and of overdue ones."""
        timeout = min(
            seconds,
            _STOP_LOOK,
            self._cores.seconds_to_next_look(len(self._running)),
            *(unit.seconds_left() for unit in self._running.values()),
        )
        ready = [descriptor for descriptor, _ in self._poll.poll(max(timeout, 0.0) * 1000)]
        overdue = [d for d, unit in self._running.items() if unit.seconds_left() <= 0 and d not in ready]
        return ready, overdue

    def _receive(self, unit: _RunningUnit) -> Iterator[T | BaseException]:
        """The items received from a unit. One that sends no more is finished."""
        fault = ""
        try:
            if (yield from unit.receive(self._record_type)):
                unit.patience = self._patience(unit.process)
                return
        except (WireError, RecordError) as error:
            fault = f"wrote something other than a result: {error}"
        yield from self._finish(unit, fault)

    def _finish(self, unit: _RunningUnit, fault: str) -> Iterator[UnitError]:
        """End a unit. If it has a fault or is incomplete, its retry waits for a core, or else this is an error."""
        descriptor = unit.channel.fileno()
        self._poll.unregister(descriptor)
        del self._running[descriptor]
        exit_text = unit.end()
        if unit.is_complete and not fault:
            return
        retry = self._retry(unit.number, f"its process {fault or exit_text}") if self._retry else None
        if retry is None:
            yield UnitError(f"a process that evaluated a kernel {fault or exit_text}")
        else:
            self._waiting.append((unit.number, retry))


def _reported_error(frame: Frame) -> PackproofError:
    text, kind = str(frame.body.get("text", "")), frame.body.get("is")
    error = UsageError(text) if kind == "usage" else PackproofError(text) if kind == "own" else UnitError(text)
    error.add_note(str(frame.body.get("trace", "")))
    return error


def _send_items(unit: Unit[Any], channel: socket.socket) -> None:
    conceal()
    keep_private(channel)
    # renew torch's thread pool now: later, each of autograd's threads (one for each GPU) would start a pool
    torch.set_num_threads(torch.get_num_threads())
    with suppress(BrokenPipeError):  # the parent has hung up
        for frame in _frames(unit):
            channel.sendall(encode(frame))


def _frames(unit: Unit[Any]) -> Iterator[Frame]:
    try:
        with closing(unit()) as events:  # type: ignore[type-var]
            for event in events:
                yield Frame("event", body={"event": to_json(event)})
    except Exception as error:
        origin = "usage" if isinstance(error, UsageError) else "own" if isinstance(error, PackproofError) else ""
        text = str(error) if origin else f"{type(error).__name__}: {error}"
        yield Frame("error", body={"is": origin, "text": text, "trace": traceback.format_exc()})
    else:
        yield Frame("end")


def _can_fork_differentiate() -> bool:
    """Whether a fork of this process can use autograd. It cannot if autograd has threads here, as beside a GPU."""
    if torch.accelerator.current_accelerator() is None:  # torch was built for none
        return True
    attempts = iter([_differentiate] * 2)
    pool = _UnitPool([next(attempts)], 1, bool, lambda *_: next(attempts, None))
    with closing(pool.events()) as results:  # type: ignore[type-var]
        for result in results:
            if isinstance(result, BaseException):
                raise result
            return bool(result)
    raise PackproofError("a fork of this process gave no result")


def _differentiate() -> Iterator[bool]:
    leaf = torch.ones((), requires_grad=True)
    try:
        torch.autograd.grad(leaf * 1, leaf)
    except RuntimeError:
        yield False
    else:
        yield True
