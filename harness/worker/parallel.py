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
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch

from packproof.harness.worker import gpus
from packproof.harness.worker.patience import Patience
from packproof.harness.worker.privilege import conceal, concealment, end_with_parent
from packproof.harness.worker.records import RecordError, from_json, to_json
from packproof.harness.worker.settled import defer_interrupts, reset_signals_in_fork
from packproof.harness.worker.sharing import Cores
from packproof.harness.worker.wire import READ_BYTES, Decoder, Frame, WireError, encode
from packproof.harness.worker.zygote_client import keep_private, shared_zygote
from packproof.refs.errors import PackproofError, UsageError

T = TypeVar("T")

_LONGEST_WAIT = 3600.0  # seconds; poll takes no infinity
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
) -> Iterator[T]:
    """Run the units side by side, one for each core. Their workers come from one zygote; torch has one thread in each.

    max_processes: units at a time, if there are as many cores.
    record_type, retry, deadline, max_silence: see `run_side_by_side`.

    On "cuda" the units are spread over the GPUs: the environment of a unit shows only its own GPU.
    """
    with ExitStack() as stack:
        stack.enter_context(concealment())
        # references have few tokens: torch's threads would only contend for cores
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        shared_zygote(interpreted=device == "cpu")  # start it before forking, else each unit starts its own
        placed_units = (
            [partial(_run_on_gpu, number, unit) for number, unit in enumerate(units)] if device == "cuda" else units
        )
        n_processes = min(os.cpu_count() or 1, max_processes)
        yield from run_side_by_side(
            placed_units, n_processes, record_type=record_type, retry=retry, deadline=deadline, max_silence=max_silence
        )


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
            _run_in_forks(units, max_processes, record_type, retry, deadline, max_silence)
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
class _Fork:
    """The process of a unit, seen from its parent."""

    number: int
    """Number of the unit."""
    pid: int
    channel: socket.socket
    patience: Patience | None = None
    """Time until the next item is overdue; None for no limit."""
    decoder: Decoder = field(default_factory=Decoder)
    is_complete: bool = False
    """Whether its last frame has arrived."""

    def seconds_left(self) -> float:
        """Seconds until it is overdue, or needs another look."""
        return self.patience.seconds_left() if self.patience else _LONGEST_WAIT


def _run_in_forks(
    units: Sequence[Unit[T]],
    max_processes: int,
    record_type: Any,
    retry: "Retry[T] | None",
    deadline: float = math.inf,
    max_silence: float = math.inf,
) -> Iterator[T | BaseException]:
    """The items and exceptions of the units, each in a fork of this process."""
    waiting, running, cores = deque(enumerate(units)), dict[int, _Fork](), Cores(max_processes, len(units))
    poll = select.poll()
    try:
        while (waiting or running) and (seconds_left := deadline - time.monotonic()) > 0:
            for fork in _start_units(waiting, running, cores, max_silence):
                poll.register(fork.channel, select.POLLIN)
            timeout = min(
                seconds_left,
                cores.seconds_to_next_look(len(running)),
                *(fork.seconds_left() for fork in running.values()),
            )
            ready = [descriptor for descriptor, _ in poll.poll(max(timeout, 0.0) * 1000)]
            overdue = [
                descriptor
                for descriptor, fork in running.items()
                if fork.seconds_left() <= 0 and descriptor not in ready
            ]
            for descriptor in ready + overdue:
                fork = running[descriptor]
                fault = f"gave nothing for {max_silence:g} s" if descriptor in overdue else ""
                try:
                    if not fault and (yield from _receive(fork, record_type)):
                        fork.patience = _silence_patience(max_silence, fork.pid)
                        continue
                except (WireError, RecordError) as error:
                    fault = f"wrote something other than a result: {error}"
                poll.unregister(descriptor)
                del running[descriptor]
                exit_text = _end_fork(fork)
                if fault or not fork.is_complete:
                    unit = retry(fork.number, f"its process {fault or exit_text}") if retry else None
                    if unit is None:
                        yield UnitError(f"a process that evaluated a kernel {fault or exit_text}")
                    else:
                        waiting.append((fork.number, unit))
    finally:
        for fork in running.values():
            _end_fork(fork)


def _start_units(
    waiting: "deque[tuple[int, Unit[Any]]]", running: dict[int, _Fork], cores: Cores, max_silence: float
) -> Iterator[_Fork]:
    """Start as many waiting units as cores are free, then let the running ones share the cores."""
    for _ in range(min(len(waiting), cores.n_startable([fork.number for fork in running.values()]))):
        with defer_interrupts():
            fork = _start_fork(*waiting.popleft(), max_silence, cores)
            running[fork.channel.fileno()] = fork
        yield fork
    cores.share([fork.number for fork in running.values()], len(waiting))


def _receive(fork: _Fork, record_type: Any) -> Generator[Any, None, bool]:
    """The items received from a unit. Returns False at the end of its stream."""
    try:
        data = fork.channel.recv(READ_BYTES)
    except ConnectionError:
        data = b""
    fork.decoder.feed(data)
    while frame := fork.decoder.take():
        if frame.kind == "event":
            yield from_json(record_type, frame.body["event"])
        elif frame.kind == "error":
            yield _reported_error(frame)
        fork.is_complete |= frame.kind in ("error", "end")
    return bool(data)


def _reported_error(frame: Frame) -> PackproofError:
    text, kind = str(frame.body.get("text", "")), frame.body.get("is")
    error = UsageError(text) if kind == "usage" else PackproofError(text) if kind == "own" else UnitError(text)
    error.add_note(str(frame.body.get("trace", "")))
    return error


def _silence_patience(max_silence: float, pid: int) -> Patience | None:
    return Patience(max_silence, pid) if math.isfinite(max_silence) else None


def _start_fork(number: int, unit: Unit[Any], max_silence: float, cores: Cores) -> _Fork:
    parent_end, child_end = socket.socketpair()
    parent = os.getpid()
    cores.mark_running(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about other threads: the fork runs none of them
        pid = os.fork()
    if pid == 0:
        parent_end.close()
        cores.enter_fork(number)
        _run_child(unit, child_end, parent)
    child_end.close()
    keep_private(parent_end)
    return _Fork(number, pid, parent_end, _silence_patience(max_silence, pid))


def _run_child(unit: Unit[Any], channel: socket.socket, parent: int) -> NoReturn:
    """Send the items of the unit, in a process that ends with its parent and ignores Ctrl-C."""
    code = 1
    try:
        if end_with_parent(parent):
            reset_signals_in_fork()
            conceal()
            keep_private(channel)
            # renew torch's thread pool now: later, each of autograd's threads (one for each GPU) would start a pool
            torch.set_num_threads(torch.get_num_threads())
            for frame in _frames(unit):
                channel.sendall(encode(frame))
            code = 0
    except BrokenPipeError:
        code = 0  # the parent has hung up
    except BaseException:  # no exception may reach the frames above: they belong to the parent
        traceback.print_exc()
    finally:
        os._exit(code)


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
    with closing(_run_in_forks([next(attempts)], 1, bool, lambda *_: next(attempts, None))) as results:  # type: ignore[type-var]
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


def _end_fork(fork: _Fork) -> str:
    """Hang up, wait for the process, and report how it ended."""
    fork.channel.close()
    if not fork.is_complete:
        os.kill(fork.pid, signal.SIGKILL)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
    except ChildProcessError:  # the calling program's own SIGCHLD handler has waited for it
        return "ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
