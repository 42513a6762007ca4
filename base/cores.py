"""The cores of this process."""

import os


def available_cores() -> int:
    """How many cores this process may use: fewer than the machine has, in a container or under `taskset`."""
    return len(os.sched_getaffinity(0))
