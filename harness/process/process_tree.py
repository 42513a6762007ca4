"""A process and all that it has started: looked up, counted and ended from outside."""

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice

from packproof.base.machine import available_cores
from packproof.harness.process.privilege import child_pids

_REAP_SECONDS = 0.001  # between two looks at what is ending
_PROCESSES, _PROCESSES_PER_CORE = 32, 8  # torch.compile has a worker for each core, up to 32, each with a compiler


def process_tree(pid: int) -> Iterator[int]:
    """The ids of a process and of all its descendants, such as a compiler."""
    pids = [pid] if pid else []
    while pids:
        yield (parent := pids.pop())
        threads = f"/proc/{parent}/task"
        with suppress(OSError):
            for thread in os.listdir(threads):
                with suppress(OSError):  # the thread may have ended
                    pids += map(int, read_start(f"{threads}/{thread}/children").split())


def max_started() -> int:
    """How many processes one call may have started, all alive: more than compilers do, far fewer than there may be."""
    return _PROCESSES + _PROCESSES_PER_CORE * available_cores()


def has_started_too_many(pid: int) -> bool:
    """Whether a process has started more than `max_started`. It looks no further: others may start while it does."""
    return next(islice(process_tree(pid), max_started() + 1, None), 0) > 0


def end_children(spared_pids: Collection[int] = ()) -> None:
    """End this process's children and their descendants; it adopts those whose parents have ended.

    All get the signal before any of them is waited for: they may start others meanwhile.
    """
    while pids := set(child_pids()).difference(spared_pids):
        for member in [member for pid in pids for member in process_tree(pid)]:
            with suppress(ProcessLookupError):  # its parent has waited for it
                os.kill(member, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, os.WNOHANG)
        time.sleep(_REAP_SECONDS)


def read_start(path: str) -> bytes:
    """The start of a file, by the fewest system calls."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
