"""How processes side by side share the cores and a device's memory.

A waiting process gives up its core. A process that used its share of time pauses until the others had theirs. Only one
process at a time may fill a device's memory.
"""

import fcntl
import math
import mmap
import os
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from packproof.properties.call import OutOfTime

_RUNS, _WAITS, _ASKS, _ENDS = range(4)
_ALIVE = 4  # processes alive for each core, waiting ones included
_LOOK = 0.5  # seconds between two looks at the states
_SLICE = 10.0  # seconds of core time after each pause
_EVERY = 0.05  # seconds between two looks of a paused process
_EVERY_TRY = 0.02  # seconds between two tries to lock a device

_mine: tuple[mmap.mmap, int] | None = None  # in a fork: the states of all forks, and its own number


class Cores:
    """The states of this process's forks, by number, in memory shared with them.

    The last byte says whether a fork waits for a core, a fork not yet started included.
    """

    def __init__(self, most: int, forks: int) -> None:
        self._most, self._said = most, mmap.mmap(-1, forks + 1)
        self._asking: deque[int] = deque()

    def begins(self, number: int) -> None:
        """Called before the fork of that number is made."""
        self._said[number] = _RUNS

    def belongs_to(self, number: int) -> None:
        """Called in the fork of that number."""
        global _mine  # noqa: PLW0603  (one for each process)
        _mine = self._said, number

    def for_others(self, running: Collection[int]) -> int:
        """How many more forks may start: one for each free core."""
        return min(self._free(running), _ALIVE * self._most - len(running))

    def share(self, running: Collection[int], to_begin: int) -> None:
        """Let asking forks go on as far as there are free cores, in the order in which they asked.

        n_waiting: units not yet started. If no more processes may be alive, the fork that asked last ends for them.
        """
        asking = [number for number in running if self._said[number] == _ASKS]
        self._asking = deque(number for number in self._asking if number in asking)
        self._asking.extend(number for number in asking if number not in self._asking)
        alive = sum(self._said[number] != _ENDS for number in running)
        if to_begin and self._asking and alive >= _ALIVE * self._most:
            self._said[self._asking.pop()] = _ENDS
        for _ in range(min(self._free(running), len(self._asking))):
            self._said[self._asking.popleft()] = _RUNS
        self._said[-1] = bool(to_begin or self._asking)

    def next_look(self, running: int) -> float:
        """Seconds until the states may have changed; infinity if a change makes no difference."""
        return _LOOK if self._said[-1] or running > self._most else math.inf

    def _free(self, running: Collection[int]) -> int:
        return self._most - sum(self._said[number] == _RUNS for number in running)


@contextmanager
def waiting() -> Iterator[None]:
    """This process needs no core inside the block."""
    if _mine is None:
        yield
        return
    said, number = _mine
    before, said[number] = said[number], _WAITS
    try:
        yield
    finally:
        said[number] = before


class CoreTime:
    """The time of a process: its own share, and in a fork more while no other fork lacks a core.

    deadline: the end of the whole run, by time.monotonic.
    share_end: the end of its own share.
    """

    def __init__(self, until: float = math.inf, own: float = math.inf) -> None:
        self.until, self._own, self._waited = until, own, 0.0

    @property
    def over(self) -> bool:
        if _mine is None:
            return time.monotonic() >= min(self._own, self.until)
        said, number = _mine
        return said[number] == _ENDS or time.monotonic() >= self.until

    def clock(self) -> float:
        """Seconds in which it had a core."""
        return time.monotonic() - self._waited

    def goes_on(self) -> bool:
        """Pause while others need the core. Returns whether there is time left then."""
        asked = time.monotonic()
        if _mine is not None and asked >= self._own and _mine[0][-1]:
            said, number = _mine
            said[number] = _ASKS
            while said[number] == _ASKS and not self.over:
                time.sleep(_EVERY)
            self._waited += time.monotonic() - asked
            self._own = time.monotonic() + _SLICE
        return not self.over


@contextmanager
def exclusive(device: str, until: float = math.inf) -> Iterator[None]:
    """Hold the lock of a device, after waiting until no other process holds it. It is released when its process ends.

    Raises OutOfTime if it is not free by `deadline`, by time.monotonic.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
    file = Path(tempfile.gettempdir()) / f"packproof-{os.getuid()}-{device}-{visible}.lock".replace(":", "-")
    with file.open("w") as held:
        with waiting():
            while not _taken(held):
                if time.monotonic() >= until:
                    raise OutOfTime(f"other processes needed the memory of {device} until the time was up")
                time.sleep(_EVERY_TRY)
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
