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

from packproof.base.errors import OutOfTime

_RUNS, _WAITS, _ASKS, _ENDS = range(4)
_MAX_PROCESSES_PER_CORE = 4  # processes alive for each core, waiting ones included
_LOOK_SECONDS = 0.5  # seconds between two looks at the states
_SLICE_SECONDS = 10.0
_POLL_SECONDS = 0.05  # seconds between two looks of a paused process
_LOCK_POLL_SECONDS = 0.02  # seconds between two tries to lock a device

_this_fork: tuple[mmap.mmap, int] | None = None  # in a fork: the states of all forks, and its own number


class Cores:
    """The states of this process's forks, by number, in memory shared with them.

    The last byte says whether a fork waits for a core, a fork not yet started included.
    """

    def __init__(self, max_running: int, n_forks: int) -> None:
        self._max_running, self._states = max_running, mmap.mmap(-1, n_forks + 1)
        self._queue: deque[int] = deque()

    def mark_running(self, number: int) -> None:
        """Called before the fork of that number is made."""
        self._states[number] = _RUNS

    def enter_fork(self, number: int) -> None:
        """Called in the fork of that number."""
        global _this_fork  # noqa: PLW0603  (one for each process)
        _this_fork = self._states, number

    def n_startable(self, running: Collection[int]) -> int:
        """How many more forks may start: one for each free core."""
        return min(self._n_free(running), _MAX_PROCESSES_PER_CORE * self._max_running - len(running))

    def share(self, running: Collection[int], n_waiting: int) -> None:
        """Let asking forks go on as far as there are free cores, in the order in which they asked.

        n_waiting: units not yet started. If no more processes may be alive, the fork that asked last ends for them.
        """
        asking = [number for number in running if self._states[number] == _ASKS]
        self._queue = deque(number for number in self._queue if number in asking)
        self._queue.extend(number for number in asking if number not in self._queue)
        n_alive = sum(self._states[number] != _ENDS for number in running)
        if n_waiting and self._queue and n_alive >= _MAX_PROCESSES_PER_CORE * self._max_running:
            self._states[self._queue.pop()] = _ENDS
        for _ in range(min(self._n_free(running), len(self._queue))):
            self._states[self._queue.popleft()] = _RUNS
        self._states[-1] = bool(n_waiting or self._queue)

    def seconds_to_next_look(self, running: int) -> float:
        """Seconds until the states may have changed; infinity if a change makes no difference."""
        return _LOOK_SECONDS if self._states[-1] or running > self._max_running else math.inf

    def _n_free(self, running: Collection[int]) -> int:
        return self._max_running - sum(self._states[number] == _RUNS for number in running)


@contextmanager
def without_core() -> Iterator[None]:
    """This process needs no core inside the block."""
    if _this_fork is None:
        yield
        return
    states, number = _this_fork
    original_state, states[number] = states[number], _WAITS
    try:
        yield
    finally:
        states[number] = original_state


class CoreTime:
    """The time of a process: its own share, and in a fork more while no other fork lacks a core.

    deadline: the end of the whole run, by time.monotonic.
    share_end: the end of its own share.
    slice_seconds: core time after each pause.
    """

    def __init__(
        self, deadline: float = math.inf, share_end: float = math.inf, slice_seconds: float = _SLICE_SECONDS
    ) -> None:
        self.deadline, self._share_end, self._seconds_waited = deadline, share_end, 0.0
        self._slice_seconds = slice_seconds

    @property
    def is_over(self) -> bool:
        if _this_fork is None:
            return time.monotonic() >= min(self._share_end, self.deadline)
        states, number = _this_fork
        return states[number] == _ENDS or time.monotonic() >= self.deadline

    def clock(self) -> float:
        """Seconds in which it had a core."""
        return time.monotonic() - self._seconds_waited

    def wait_for_turn(self) -> bool:
        """Pause while others need the core. Returns whether there is time left then."""
        start = time.monotonic()
        if _this_fork is not None and start >= self._share_end and _this_fork[0][-1]:
            states, number = _this_fork
            states[number] = _ASKS
            while states[number] == _ASKS and not self.is_over:
                time.sleep(_POLL_SECONDS)
            self._seconds_waited += time.monotonic() - start
            self._share_end = time.monotonic() + self._slice_seconds
        return not self.is_over


@contextmanager
def exclusive_device(device: str, deadline: float = math.inf) -> Iterator[None]:
    """Hold the lock of a device, after waiting until no other process holds it. It is released when its process ends.

    Raises OutOfTime if it is not free by `deadline`, by time.monotonic.
    """
    gpu_list = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
    file = Path(tempfile.gettempdir()) / f"packproof-{os.getuid()}-{device}-{gpu_list}.lock".replace(":", "-")
    with file.open("w") as lock_file:
        with without_core():
            while not _try_lock(lock_file):
                if time.monotonic() >= deadline:
                    raise OutOfTime(f"other processes needed the memory of {device} until the time was up")
                time.sleep(_LOCK_POLL_SECONDS)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
