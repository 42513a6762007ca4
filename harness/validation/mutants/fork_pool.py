"""Forked processes that do work which may crash or hang, some at a time: nothing of it stays behind in their parent."""

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
Words = Mapping[str, Any]
_BACKSTOP = 1200  # seconds, for a process that waits instead of computing
_BATCH = 16  # items of a child: a fork of a process with torch costs more than most of them

DONE, TAINTED = "done", "tainted"


@dataclass
class _PoolChild(Generic[T]):
    """left: the items that it has not ended, the first one under way. said: of that one."""

    pid: int
    left: deque[T]
    heard: bytes = b""
    said: dict[str, Any] = field(default_factory=dict)


def forked(items: Iterable[T], work: Callable[[T], Iterator[Words]], jobs: int) -> Iterator[tuple[T, dict[str, Any]]]:
    """Do the work for each item in a child; yields what each has said, later words over earlier ones, as they end.

    A child takes several items, one after the other, up to one whose last words are "tainted": true. Of an item during
    which the child did not end by itself "by" says how: "hung" or "crashed". Raises PackproofError where the work did.
    """
    waiting, running = deque(items), dict[int, _PoolChild[T]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                batch = deque(islice(_taken(waiting), max(1, min(_BATCH, len(waiting) // jobs))))
                pipe, child = _start(batch, work)
                running[pipe] = child
            for pipe in select.select(list(running), [], [])[0]:
                data = os.read(pipe, 1 << 16)
                yield from _heard(running[pipe], data)
                if not data:
                    os.close(pipe)
                    child = running.pop(pipe)
                    yield from _ended(child)
                    waiting.extendleft(reversed(child.left))
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def _taken(waiting: deque[T]) -> Iterator[T]:
    while waiting:
        yield waiting.popleft()


def _start(batch: deque[T], work: Callable[[T], Iterator[Words]]) -> tuple[int, _PoolChild[T]]:
    pipe, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(batch, work, its)
    os.close(its)
    return pipe, _PoolChild(pid, batch)


def _live(batch: Iterable[T], work: Callable[[T], Iterator[Words]], pipe: int) -> NoReturn:
    def say(words: Words) -> None:
        os.write(pipe, json.dumps(words).encode() + b"\n")

    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        for item in batch:
            signal.alarm(_BACKSTOP)
            words: Words = {}
            for words in work(item):
                say(words)
            say({DONE: True})
            if words.get(TAINTED):
                break
    except BaseException:  # nobody above may see it: those frames belong to the parent
        say({"error": traceback.format_exc()})
    finally:
        os._exit(0)


def _heard(child: _PoolChild[T], data: bytes) -> Iterator[tuple[T, dict[str, Any]]]:
    """The items that end with these data, with all that was said of each."""
    *lines, child.heard = (child.heard + data).split(b"\n")
    for line in lines:
        child.said |= json.loads(line)
        if "error" in child.said:
            raise PackproofError(f"a mutant could not be judged: {child.left[0]}\n{child.said['error']}")
        if child.said.pop(DONE, False):
            child.said.pop(TAINTED, None)
            said, child.said = child.said, {}
            yield child.left.popleft(), said


def _ended(child: _PoolChild[T]) -> Iterator[tuple[T, dict[str, Any]]]:
    """The item that was under way when the process was ended, if it was."""
    _, status = os.waitpid(child.pid, 0)
    if os.WIFSIGNALED(status):
        hung = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
        yield child.left.popleft(), child.said | {"by": "hung" if hung else "crashed"}
