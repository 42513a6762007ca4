"""How long a process has had to answer. Only time with a core counts: on a busy machine a process waits for one."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from packproof.harness.process.process_tree import process_tree, read_start

_MAX_CLOCK_FACTOR = 10.0  # times the limit, by the clock, however long the process has waited for a core
_MOST_THREADS = 512  # of a process and its compilers; one that starts more keeps itself waiting
_LOOK_INTERVAL = 0.5  # seconds between two looks at /proc
_FIRST_LOOK = 0.05  # seconds until the first look: most calls of a kernel are shorter


def core_waits(pid: int) -> Iterator[tuple[int, float]]:
    """Seconds each thread of a process, and of all its descendants such as a compiler, has waited for a core.

    All threads count: autograd runs a backward pass on a GPU, with its compilations, in a thread of its own.
    """
    for member in process_tree(pid):
        threads = f"/proc/{member}/task"
        with suppress(OSError):
            for thread in os.listdir(threads):
                with suppress(OSError, ValueError, IndexError):  # the thread may have ended
                    yield int(thread), int(read_start(f"{threads}/{thread}/schedstat").split()[1]) / 1e9


class Patience:
    """The time limit for a process's answer, counted from the creation of this object.

    limit: seconds with a core.
    pid: the process; 0 if not yet known.
    deadline: the end by the clock.
    clock: seconds now.
    read_waits: see `core_waits`.
    """

    def __init__(
        self,
        limit: float,
        pid: int,
        deadline: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        read_waits: Callable[[int], Iterable[tuple[int, float]]] = core_waits,
    ) -> None:
        self._limit, self._pid, self._deadline = limit, pid, deadline
        self._clock, self._read_waits = clock, read_waits
        self._start = self._last_look = clock()
        self._seconds_waited = 0.0
        self._last_waits: dict[int, float] | None = None

    def seconds_left(self) -> float:
        """Seconds until the process is overdue or needs another look; 0 or less once it is overdue."""
        now = self._clock()
        interval = _FIRST_LOOK if self._last_waits is None else _LOOK_INTERVAL
        if now - self._last_look >= interval or now - self._start - self._seconds_waited >= self._limit:
            self._count_waits(now)
        elapsed = now - self._start
        remaining = min(
            max(self._limit - (elapsed - self._seconds_waited), 0.0),
            _MAX_CLOCK_FACTOR * self._limit - elapsed,
            self._deadline - now,
        )
        return min(interval, remaining)

    def _count_waits(self, now: float) -> None:
        """Add the time its threads have waited for a core since the last look; several may have waited at once."""
        waits = dict(self._read_waits(self._pid))
        if self._last_waits is not None:
            new_waits = sum(seconds - self._last_waits.get(thread, 0.0) for thread, seconds in waits.items())
            if len(waits) <= _MOST_THREADS:
                self._seconds_waited += min(new_waits, now - self._last_look)
        self._last_waits, self._last_look = waits, now
