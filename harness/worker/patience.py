"""How long a process has had to answer: only the time in which it could run, which a busy machine shortens."""

import os
import time
from contextlib import suppress

_MOST = 10.0  # times the limit, by the clock, whatever the process has waited for
_EVERY = 0.5  # seconds between two looks at it


class Patience:
    """Counts from its creation. pid: of the awaited process, 0 where that is not known yet."""

    def __init__(self, limit: float, pid: int) -> None:
        self._limit, self._pid = limit, pid
        self._started = self._looked = time.monotonic()
        self._first = self._last = _starved(pid)

    def left(self) -> float:
        """Seconds until the process is overdue or should be looked at again; 0 or less once it is overdue."""
        now = time.monotonic()
        spent = now - self._started
        if now - self._looked > _EVERY or spent > self._limit:
            self._looked, self._last = now, self._last | _starved(self._pid)
        waited = sum(seconds - self._first.get(task, 0.0) for task, seconds in self._last.items())
        return min(_EVERY, max(self._limit - (spent - waited), 0.0), _MOST * self._limit - spent)


def _starved(pid: int) -> dict[int, float]:
    """Seconds that the main threads of a process and of all below it, such as a compiler, have waited for a core."""
    found: dict[int, float] = {}
    below = [pid] if pid else []
    while below:
        task = below.pop()
        with suppress(OSError, ValueError, IndexError):
            found[task] = int(_read(f"/proc/{task}/schedstat").split()[1]) / 1e9
            below += map(int, _read(f"/proc/{task}/task/{task}/children").split())
    return found


def _read(path: str) -> bytes:
    """The start of a file, read as cheaply as it can be: this is done for every call of a kernel."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
