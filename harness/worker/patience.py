"""How long a process has had to answer. Only time with a core counts: on a busy machine a process waits for one."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress

_MOST = 10.0  # times the limit, by the clock, however long the process has waited for a core
_EVERY = 0.5  # seconds between two looks at /proc
_FIRST = 0.05  # seconds until the first look: most calls of a kernel are shorter


class Patience:
    """The time limit for a process's answer, counted from the creation of this object.

    limit: seconds with a core.
    pid: the process; 0 if not yet known.
    deadline: the end by the clock, by time.monotonic.
    """

    def __init__(self, limit: float, pid: int, until: float = math.inf) -> None:
        self._limit, self._pid, self._until = limit, pid, until
        self._started = self._looked = time.monotonic()
        self._waited = 0.0
        self._last: dict[int, float] | None = None

    def left(self) -> float:
        """Seconds until the process is overdue or needs another look; 0 or less once it is overdue."""
        now = time.monotonic()
        every = _FIRST if self._last is None else _EVERY
        if now - self._looked >= every or now - self._started - self._waited >= self._limit:
            self._look(now)
        spent = now - self._started
        left = min(max(self._limit - (spent - self._waited), 0.0), _MOST * self._limit - spent, self._until - now)
        return min(every, left)

    def _look(self, now: float) -> None:
        """Add the time its threads have waited for a core since the last look; several may have waited at once."""
        found = dict(_starved(self._pid))
        if self._last is not None:
            waited = sum(seconds - self._last.get(thread, 0.0) for thread, seconds in found.items())
            self._waited += min(waited, now - self._looked)
        self._last, self._looked = found, now


def _starved(pid: int) -> Iterator[tuple[int, float]]:
    """Seconds each thread of a process, and of all its descendants such as a compiler, has waited for a core.

    All threads count: autograd runs a backward pass on a GPU, with its compilations, in a thread of its own.
    """
    below = [pid] if pid else []
    while below:
        threads = f"/proc/{below.pop()}/task"
        with suppress(OSError):
            for thread in os.listdir(threads):
                with suppress(OSError, ValueError, IndexError):  # the thread may have ended
                    yield int(thread), int(_read(f"{threads}/{thread}/schedstat").split()[1]) / 1e9
                    below += map(int, _read(f"{threads}/{thread}/children").split())


def _read(path: str) -> bytes:
    """The start of a file, by the fewest system calls."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
