"""A pool of forked processes for work that may crash or hang, without a trace of it in their parent."""

import json
import os
import select
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, NoReturn, TypeVar

from packproof.refs.errors import PackproofError

T = TypeVar("T")
Report = Mapping[str, Any]
_BACKSTOP = 1200  # seconds: CPU limits do not end a process that only waits
_BATCH = 16  # items of a fork: forking a process with torch costs more than most of them

DONE, TAINTED = "done", "tainted"


@dataclass
class _PoolFork(Generic[T]):
    """A fork and its items."""

    pid: int
    left: deque[T]
    """The unfinished items. The first one is running."""
    heard: bytes = b""
    """The received part of an incomplete line."""
    reported: dict[str, Any] = field(default_factory=dict)
    """The reports of the running item so far, merged."""


def forked(items: Iterable[T], work: Callable[[T], Iterator[Report]], jobs: int) -> Iterator[tuple[T, dict[str, Any]]]:
    """Do the work for each item in a fork; yield each finished item with its reports merged, later over earlier.

    A fork takes several items, one after another. It ends early after a report with "tainted": true. If an item kills
    its fork, "by" is "hung" or "crashed". Raises PackproofError if the work raises.
    """
    waiting, running = deque(items), dict[int, _PoolFork[T]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                batch = deque(islice(_taken(waiting), max(1, min(_BATCH, len(waiting) // jobs))))
                pipe, fork = _start(batch, work)
                running[pipe] = fork
            for pipe in select.select(list(running), [], [])[0]:
                data = os.read(pipe, 1 << 16)
                yield from _heard(running[pipe], data)
                if not data:
                    os.close(pipe)
                    fork = running.pop(pipe)
                    yield from _ended(fork)
                    waiting.extendleft(reversed(fork.left))
    finally:
        for fork in running.values():
            os.kill(fork.pid, signal.SIGKILL)
            os.waitpid(fork.pid, 0)


def _taken(waiting: deque[T]) -> Iterator[T]:
    while waiting:
        yield waiting.popleft()


def _start(batch: deque[T], work: Callable[[T], Iterator[Report]]) -> tuple[int, _PoolFork[T]]:
    pipe, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(batch, work, its)
    os.close(its)
    return pipe, _PoolFork(pid, batch)


def _live(batch: Iterable[T], work: Callable[[T], Iterator[Report]], pipe: int) -> NoReturn:
    def report(fields: Report) -> None:
        os.write(pipe, json.dumps(fields).encode() + b"\n")

    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for item in batch:
            signal.alarm(_BACKSTOP)
            fields: Report = {}
            for fields in work(item):
                report(fields)
            report({DONE: True})
            if fields.get(TAINTED):
                break
    except BaseException:  # frames above belong to the parent process
        report({"error": traceback.format_exc()})
    finally:
        os._exit(0)


def _heard(fork: _PoolFork[T], data: bytes) -> Iterator[tuple[T, dict[str, Any]]]:
    """The items finished by these data, each with its merged reports."""
    *lines, fork.heard = (fork.heard + data).split(b"\n")
    for line in lines:
        fork.reported |= json.loads(line)
        if "error" in fork.reported:
            raise PackproofError(f"a mutant could not be checked: {fork.left[0]}\n{fork.reported['error']}")
        if fork.reported.pop(DONE, False):
            fork.reported.pop(TAINTED, None)
            reported, fork.reported = fork.reported, {}
            yield fork.left.popleft(), reported


def _ended(fork: _PoolFork[T]) -> Iterator[tuple[T, dict[str, Any]]]:
    """The running item of a killed process; nothing if it ended normally."""
    _, status = os.waitpid(fork.pid, 0)
    if os.WIFSIGNALED(status):
        hung = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
        yield fork.left.popleft(), fork.reported | {"by": "hung" if hung else "crashed"}
