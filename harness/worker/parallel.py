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
from packproof.harness.worker.privilege import conceal, concealed, end_with_parent
from packproof.harness.worker.records import RecordError, of_json, to_json
from packproof.harness.worker.settled import interrupts_later, take_signals_as_a_fork
from packproof.harness.worker.sharing import Cores
from packproof.harness.worker.wire import AT_ONCE, Decoder, Frame, WireError, encode
from packproof.harness.worker.zygote_client import keep_private, shared
from packproof.refs.errors import PackproofError, UsageError

T = TypeVar("T")

_LONGEST_WAIT = 3600.0  # seconds; poll takes no infinity
_MOST = 32  # each process has torch threads for all cores

Unit = Callable[[], Iterator[T]]
Again = Callable[[int, str], "Unit[T] | None"]


class UnitError(PackproofError):
    """A unit raised an exception other than packproof's own, or its process ended. The notes have the traceback."""


def on_every_core(
    units: Sequence[Unit[T]],
    device: str,
    *,
    of: Any,
    most: int = _MOST,
    again: "Again[T] | None" = None,
    until: float = math.inf,
    silence: float = math.inf,
) -> Iterator[T]:
    """Run the units side by side, one for each core. Their workers come from one zygote; torch has one thread in each.

    max_processes: units at a time, if there are as many cores.
    record_type, retry, deadline, max_silence: see `run_side_by_side`.

    On "cuda" the units are spread over the GPUs: the environment of a unit shows only its own GPU.
    """
    with ExitStack() as stack:
        stack.enter_context(concealed())
        # references have few tokens: torch's threads would only contend for cores
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        shared(interpreted=device == "cpu")  # start it before forking, else each unit starts its own
        placed = [partial(_on_a_gpu, number, unit) for number, unit in enumerate(units)] if device == "cuda" else units
        at_once = min(os.cpu_count() or 1, most)
        yield from side_by_side(placed, at_once, of=of, again=again, until=until, silence=silence)


def _on_a_gpu(number: int, unit: Unit[T]) -> Iterator[T]:
    before = dict(os.environ)
    os.environ.update(gpus.pinned(number))
    try:
        yield from unit()
    finally:
        os.environ.clear()
        os.environ.update(before)


def side_by_side(
    units: Sequence[Unit[T]],
    most: int,
    *,
    of: Any,
    again: "Again[T] | None" = None,
    until: float = math.inf,
    silence: float = math.inf,
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
    failed: list[BaseException] = []
    try:
        with closing(
            _forks(units, most, of, again, until, silence) if _forks_differentiate() else _sequentially(units)
        ) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, BaseException):
                    failed.append(event)
                else:
                    yield event
    except KeyboardInterrupt:
        if not failed:
            raise
    if failed:
        first, *others = failed
        for other in others:
            first.add_note(f"and beside it {type(other).__name__}: {other}")
        raise first


def _sequentially(units: Sequence[Unit[T]]) -> Iterator[T | BaseException]:
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
    ended: bool = False
    """Whether its last frame has arrived."""

    def left(self) -> float:
        """Seconds until it is overdue, or needs another look."""
        return self.patience.left() if self.patience else _LONGEST_WAIT


def _forks(
    units: Sequence[Unit[T]],
    most: int,
    of: Any,
    again: "Again[T] | None",
    until: float = math.inf,
    silence: float = math.inf,
) -> Iterator[T | BaseException]:
    """The items and exceptions of the units, each in a fork of this process."""
    waiting, running, cores = deque(enumerate(units)), dict[int, _Fork](), Cores(most, len(units))
    poll = select.poll()
    try:
        while (waiting or running) and (left := until - time.monotonic()) > 0:
            for fork in _begun(waiting, running, cores, silence):
                poll.register(fork.channel, select.POLLIN)
            soon = min(left, cores.next_look(len(running)), *(fork.left() for fork in running.values()))
            heard = [descriptor for descriptor, _ in poll.poll(max(soon, 0.0) * 1000)]
            overdue = [
                descriptor for descriptor, fork in running.items() if fork.left() <= 0 and descriptor not in heard
            ]
            for descriptor in heard + overdue:
                fork = running[descriptor]
                fault = f"gave nothing for {silence:g} s" if descriptor in overdue else ""
                try:
                    if not fault and (yield from _heard(fork, of)):
                        fork.patience = _patience(silence, fork.pid)
                        continue
                except (WireError, RecordError) as error:
                    fault = f"wrote something other than a result: {error}"
                poll.unregister(descriptor)
                del running[descriptor]
                how = _ended(fork)
                if fault or not fork.ended:
                    unit = again(fork.number, f"its process {fault or how}") if again else None
                    if unit is None:
                        yield UnitError(f"a process that evaluated a kernel {fault or how}")
                    else:
                        waiting.append((fork.number, unit))
    finally:
        for fork in running.values():
            _ended(fork)


def _begun(
    waiting: "deque[tuple[int, Unit[Any]]]", running: dict[int, _Fork], cores: Cores, silence: float
) -> Iterator[_Fork]:
    """Start as many waiting units as cores are free, then let the running ones share the cores."""
    for _ in range(min(len(waiting), cores.for_others([fork.number for fork in running.values()]))):
        with interrupts_later():
            fork = _started(*waiting.popleft(), silence, cores)
            running[fork.channel.fileno()] = fork
        yield fork
    cores.share([fork.number for fork in running.values()], len(waiting))


def _heard(fork: _Fork, of: Any) -> Generator[Any, None, bool]:
    """The items received from a unit. Returns False at the end of its stream."""
    try:
        data = fork.channel.recv(AT_ONCE)
    except ConnectionError:
        data = b""
    fork.decoder.feed(data)
    while frame := fork.decoder.take():
        if frame.kind == "event":
            yield of_json(of, frame.body["event"])
        elif frame.kind == "error":
            yield _error(frame)
        fork.ended |= frame.kind in ("error", "end")
    return bool(data)


def _error(frame: Frame) -> PackproofError:
    text, kind = str(frame.body.get("text", "")), frame.body.get("is")
    error = UsageError(text) if kind == "usage" else PackproofError(text) if kind == "own" else UnitError(text)
    error.add_note(str(frame.body.get("trace", "")))
    return error


def _patience(silence: float, pid: int) -> Patience | None:
    return Patience(silence, pid) if math.isfinite(silence) else None


def _started(number: int, unit: Unit[Any], silence: float, cores: Cores) -> _Fork:
    ours, its = socket.socketpair()
    parent = os.getpid()
    cores.begins(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about other threads: the fork runs none of them
        pid = os.fork()
    if pid == 0:
        ours.close()
        cores.belongs_to(number)
        _live(unit, its, parent)
    its.close()
    keep_private(ours)
    return _Fork(number, pid, ours, _patience(silence, pid))


def _live(unit: Unit[Any], channel: socket.socket, parent: int) -> NoReturn:
    """Send the items of the unit, in a process that ends with its parent and ignores Ctrl-C."""
    code = 1
    try:
        if end_with_parent(parent):
            take_signals_as_a_fork()
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
        own = "usage" if isinstance(error, UsageError) else "own" if isinstance(error, PackproofError) else ""
        text = str(error) if own else f"{type(error).__name__}: {error}"
        yield Frame("error", body={"is": own, "text": text, "trace": traceback.format_exc()})
    else:
        yield Frame("end")


def _forks_differentiate() -> bool:
    """Whether a fork of this process can use autograd. It cannot if autograd has threads here, as beside a GPU."""
    if torch.accelerator.current_accelerator() is None:  # torch was built for none
        return True
    tries = iter([_differentiate] * 2)
    with closing(_forks([next(tries)], 1, bool, lambda *_: next(tries, None))) as found:  # type: ignore[type-var]
        for fit in found:
            if isinstance(fit, BaseException):
                raise fit
            return bool(fit)
    raise PackproofError("a fork of this process gave no result")


def _differentiate() -> Iterator[bool]:
    leaf = torch.ones((), requires_grad=True)
    try:
        torch.autograd.grad(leaf * 1, leaf)
    except RuntimeError:
        yield False
    else:
        yield True


def _ended(fork: _Fork) -> str:
    """Hang up, wait for the process, and report how it ended."""
    fork.channel.close()
    if not fork.ended:
        os.kill(fork.pid, signal.SIGKILL)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
    except ChildProcessError:  # the calling program's own SIGCHLD handler has waited for it
        return "ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
