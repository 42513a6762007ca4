"""Workers of a local Ray cluster, killed at random moments while they grade."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Killer:
    """Kills workers of the cluster of this process. Each has a process id from Ray's state API, and runs a grade.

    share: of the grades that were done, how many workers are killed for each one.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.kills = 0
        self._share, self._random = share, random.Random(seed)
        self._moments: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._kill_on)
        self._error: Exception | None = None

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error:
            raise self._error

    def grade_was_done(self, seconds: float) -> None:
        """After a grade of so many seconds: perhaps kill a worker, at some moment within as long a time."""
        if self._random.random() < self._share:
            self._moments.append(time.monotonic() + self._random.uniform(0, seconds))

    def _kill_on(self) -> None:
        try:
            while not self._is_over.wait(0.05):
                self._kill_due()
        except Exception as error:  # raised at the end: a run without kills shows nothing
            self._error = error

    def _kill_due(self) -> None:
        for moment in [moment for moment in self._moments if moment < time.monotonic()]:
            if kill_one(self._random.choice):
                self._moments.remove(moment)
                self.kills += 1


def kill_one(choice: Callable[[list[Any]], Any]) -> bool:
    """Kill one of the workers that run a grade now; False if there is none."""
    import ray  # noqa: PLC0415  (optional)
    from ray.util.state import list_tasks  # noqa: PLC0415

    address = ray.get_runtime_context().gcs_address  # other clusters may run on this machine
    running = list_tasks(address, detail=True, filters=[("state", "=", "RUNNING")])
    pids = [task.worker_pid for task in running if task.worker_pid]
    if not pids:
        return False
    with suppress(ProcessLookupError):
        os.kill(choice(pids), signal.SIGKILL)
        return True
    return False
