"""One forked process for each mutant, some at a time: it may crash or hang, and nothing of it stays behind."""

import json
import os
import select
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from packproof.refs.errors import PackproofError

T = TypeVar("T")
Words = Mapping[str, Any]
_BACKSTOP = 1200  # seconds, for a process that waits instead of computing


@dataclass
class _Child(Generic[T]):
    pid: int
    item: T
    said: bytes = b""


def forked(items: Iterable[T], work: Callable[[T], Iterator[Words]], jobs: int) -> Iterator[tuple[T, dict[str, Any]]]:
    """Do the work for each item in a child; yields what each has said, later words over earlier ones, as they end.

    Of a child that did not end by itself "by" says how: "hung" or "crashed". Raises PackproofError where the work did.
    """
    waiting, running = deque(items), dict[int, _Child[T]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                pipe, child = _start(waiting.popleft(), work)
                running[pipe] = child
            for pipe in select.select(list(running), [], [])[0]:
                data = os.read(pipe, 1 << 16)
                running[pipe].said += data
                if not data:
                    os.close(pipe)
                    child = running.pop(pipe)
                    yield child.item, _outcome(child)
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def _start(item: T, work: Callable[[T], Iterator[Words]]) -> tuple[int, _Child[T]]:
    pipe, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(item, work, its)
    os.close(its)
    return pipe, _Child(pid, item)


def _live(item: T, work: Callable[[T], Iterator[Words]], pipe: int) -> NoReturn:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        signal.alarm(_BACKSTOP)
        for words in work(item):
            os.write(pipe, json.dumps(words).encode() + b"\n")
    except BaseException:  # nobody above may see it: those frames belong to the parent
        os.write(pipe, json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
    finally:
        os._exit(0)


def _outcome(child: _Child[T]) -> dict[str, Any]:
    _, status = os.waitpid(child.pid, 0)
    whole, _, _ = child.said.rpartition(b"\n")
    said = {key: value for line in whole.splitlines() for key, value in json.loads(line).items()}
    if "error" in said:
        raise PackproofError(f"a mutant could not be judged: {child.item}\n{said['error']}")
    if os.WIFSIGNALED(status):
        said["by"] = "hung" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "crashed"
    return said
