"""How long a process has had to answer: only the time in which it could run, which a busy machine shortens."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress

_MOST = 10.0  # times the limit, by the clock, whatever the process has waited for
_EVERY = 0.5  # seconds between two looks at it
_FIRST = 0.05  # seconds until the first, which most calls of a kernel do not last


class Patience:
    """Counts from its creation. pid: of the awaited process, 0 where that is not known yet. until: when it ends by the
    clock, by time.monotonic."""

    def __init__(self, limit: float, pid: int, until: float = math.inf) -> None:
        self._limit, self._pid, self._until = limit, pid, until
        self._started = self._looked = time.monotonic()
        self._waited = 0.0
        self._last: dict[int, float] | None = None

    def left(self) -> float:
        """Seconds until the process is overdue or should be looked at again; 0 or less once it is overdue."""
        now = time.monotonic()
        every = _FIRST if self._last is None else _EVERY
        if now - self._looked >= every or now - self._started - self._waited >= self._limit:
            self._look(now)
        spent = now - self._started
        left = min(max(self._limit - (spent - self._waited), 0.0), _MOST * self._limit - spent, self._until - now)
        return min(every, left)

    def _look(self, now: float) -> None:
        """Count what its threads have waited since the last look, of which several may have waited at once."""
        found = dict(_starved(self._pid))
        if self._last is not None:
            waited = sum(seconds - self._last.get(thread, 0.0) for thread, seconds in found.items())
            self._waited += min(waited, now - self._looked)
        self._last, self._looked = found, now


def _starved(pid: int) -> Iterator[tuple[int, float]]:
    """Seconds that each thread of a process and of all below it, such as a compiler, has waited for a core.

    All threads: autograd runs a backward pass on a GPU, with the compilations that it starts, in a thread of its own.
    """
    below = [pid] if pid else []
    while below:
        threads = f"/proc/{below.pop()}/task"
        with suppress(OSError):
            for thread in os.listdir(threads):
                with suppress(OSError, ValueError, IndexError):  # it may end meanwhile
                    yield int(thread), int(_read(f"{threads}/{thread}/schedstat").split()[1]) / 1e9
                    below += map(int, _read(f"{threads}/{thread}/children").split())


def _read(path: str) -> bytes:
    """The start of a file, read as cheaply as it can be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
