"""Generators side by side: each runs in a fork of this process, and what they yield comes out in one stream."""

import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from ctypes import CDLL
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

import torch

from packproof.harness import gpus
from packproof.harness.zygote import import_early
from packproof.harness.zygote_client import shared

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_MOST = 32  # processes: torch has a thread for each core in each of them

Unit = Callable[[], Iterator[T]]


def on_every_core(units: Sequence[Unit[T]], device: str, *, most: int = _MOST) -> Iterator[T]:
    """Run the units side by side; their workers come from one zygote, and torch has one thread in each.

    most: units at a time, if there are as many cores.
    On "cuda" the units take the GPUs in turn: what the environment of a unit shows is its own GPU alone.
    """
    with ExitStack() as stack:
        # references of a few tokens: on many cores torch's threads would mostly wait for each other
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        shared(interpreted=device == "cpu")  # here: each unit is a fork, which would start its own
        placed = [partial(_on_a_gpu, number, unit) for number, unit in enumerate(units)] if device == "cuda" else units
        yield from side_by_side(placed, min(os.cpu_count() or 1, most))


def _on_a_gpu(number: int, unit: Unit[T]) -> Iterator[T]:
    before = dict(os.environ)
    os.environ.update(gpus.pinned(number))
    try:
        yield from unit()
    finally:
        os.environ.clear()
        os.environ.update(before)


def side_by_side(units: Sequence[Unit[T]], most: int) -> Iterator[T]:
    """Run the units, at most `most` at a time, in order of their start; yields what they yield as it comes.

    An exception in one ends that one; the stream ends with it, once the others are done. Leaving the stream early, by
    an exception such as Ctrl-C or by closing it, ends every unit. Where this process has used autograd beside a GPU,
    which no fork survives, the units run in it, one after the other.
    """
    import_early()  # here, and not in each fork
    failed: list[BaseException] = []
    try:
        with closing(_forks(units, most) if _forks_differentiate() else _turns(units)) as events:  # type: ignore[type-var]
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


def _turns(units: Sequence[Unit[T]]) -> Iterator[T | BaseException]:
    """What the units yield or raise, one after the other."""
    for unit in units:
        try:
            with closing(unit()) as events:  # type: ignore[type-var]
                yield from events
        except Exception as error:
            yield error


def _forks(units: Sequence[Unit[T]], most: int) -> Iterator[T | BaseException]:
    """What the units yield or raise, each in a fork of this process."""
    waiting, running = deque(units), dict[Connection, BaseProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < most:
                said, process = _forked(partial(_run, waiting.popleft()))
                running[said] = process
            for said in cast(list[Connection], wait(list(running))):
                try:
                    event = said.recv()
                except EOFError:
                    if fault := _end(said, running.pop(said)):
                        yield fault
                    continue
                yield event
    finally:
        for process in running.values():
            process.kill()
            process.join()


def _forked(work: Callable[[Connection, int], None]) -> tuple[Connection, BaseProcess]:
    """Start some work, and what can be heard of it."""
    context = get_context("fork")
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_settled, args=(work, its, os.getpid()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the fork runs none of them
        process.start()
    its.close()
    return ours, process


def _settled(work: Callable[[Connection, int], None], said: Connection, parent: int) -> None:
    # a fork renews torch's thread pool at first use; autograd's threads, one for each GPU, would do so all at once
    torch.set_num_threads(torch.get_num_threads())
    work(said, parent)


def _run(unit: Unit[Any], said: Connection, parent: int) -> None:
    """Say what the unit yields, in a process that is gone when its parent is and that no Ctrl-C reaches."""
    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with closing(unit()) as events:  # type: ignore[type-var]
            for event in events:
                said.send(event)
    except BaseException as error:
        error.add_note(traceback.format_exc())  # a traceback does not cross
        said.send(error)


def _forks_differentiate() -> bool:
    said, process = _forked(_differentiate)
    fit: bool = said.recv()
    if fault := _end(said, process):
        raise fault
    return fit


def _differentiate(said: Connection, parent: int) -> None:
    leaf = torch.ones((), requires_grad=True)
    try:
        torch.autograd.grad(leaf * 1, leaf)
    except RuntimeError:
        said.send(False)
    else:
        said.send(True)


def _end(said: Connection, process: BaseProcess) -> RuntimeError | None:
    """Wait for the process; what to raise if it failed."""
    said.close()
    process.join()
    code = process.exitcode
    return RuntimeError(f"a process that judged a kernel ended with exit code {code}") if code else None
