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
from typing import Any, Generic, TypeVar

from packproof.base.errors import PackproofError
from packproof.harness.process.execution import Fork, start_fork

T = TypeVar("T")
Report = Mapping[str, Any]
_BACKSTOP = 1200  # seconds: CPU limits do not end a process that only waits
_BATCH = 16  # items of a fork: forking a process with torch costs more than most of them

DONE, TAINTED = "done", "tainted"


@dataclass
class _PoolFork(Generic[T]):
    """A fork and its items."""

    process: Fork
    unfinished: deque[T]
    """The unfinished items. The first one is running."""
    buffer: bytes = b""
    """The received part of an incomplete line."""
    merged_report: dict[str, Any] = field(default_factory=dict)
    """The reports of the running item so far, merged."""


def run_forked(
    items: Iterable[T], work: Callable[[T], Iterator[Report]], jobs: int
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Do the work for each item in a fork; yield each finished item with its reports merged, later over earlier.

    A fork takes several items, one after another. It ends early after a report with "tainted": true. If an item kills
    its fork, "by" is "hung" or "crashed". Raises PackproofError if the work raises.
    """
    waiting, running = deque(items), dict[int, _PoolFork[T]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                batch = deque(islice(_pop_items(waiting), max(1, min(_BATCH, len(waiting) // jobs))))
                pipe, fork = _start(batch, work)
                running[pipe] = fork
            for pipe in select.select(list(running), [], [])[0]:
                data = os.read(pipe, 1 << 16)
                yield from _receive(running[pipe], data)
                if not data:
                    os.close(pipe)
                    fork = running.pop(pipe)
                    yield from _killed_item(fork)
                    waiting.extendleft(reversed(fork.unfinished))
    finally:
        for fork in running.values():
            fork.process.kill()


def _pop_items(waiting: deque[T]) -> Iterator[T]:
    while waiting:
        yield waiting.popleft()


def _start(batch: deque[T], work: Callable[[T], Iterator[Report]]) -> tuple[int, _PoolFork[T]]:
    pipe, child_pipe = os.pipe()
    process = start_fork(lambda: _work_through(batch, work, child_pipe))
    os.close(child_pipe)
    return pipe, _PoolFork(process, batch)


def _work_through(batch: Iterable[T], work: Callable[[T], Iterator[Report]], pipe: int) -> None:
    """Send the reports on each item of the batch, as lines of JSON."""

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
    except BaseException:
        report({"error": traceback.format_exc()})


def _receive(fork: _PoolFork[T], data: bytes) -> Iterator[tuple[T, dict[str, Any]]]:
    """The items finished by these data, each with its merged reports."""
    *lines, fork.buffer = (fork.buffer + data).split(b"\n")
    for line in lines:
        fork.merged_report |= json.loads(line)
        if "error" in fork.merged_report:
            raise PackproofError(f"a mutant could not be checked: {fork.unfinished[0]}\n{fork.merged_report['error']}")
        if fork.merged_report.pop(DONE, False):
            fork.merged_report.pop(TAINTED, None)
            merged_report, fork.merged_report = fork.merged_report, {}
            yield fork.unfinished.popleft(), merged_report


def _killed_item(fork: _PoolFork[T]) -> Iterator[tuple[T, dict[str, Any]]]:
    """The running item of a killed process; nothing if it ended normally."""
    code = fork.process.wait()
    if code is not None and code < 0:
        hung = -code in (signal.SIGPROF, signal.SIGALRM)
        yield fork.unfinished.popleft(), fork.merged_report | {"by": "hung" if hung else "crashed"}
