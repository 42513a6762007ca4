"""A lock for calls that need most of a device's memory: one at a time among all processes of a user."""

import fcntl
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from packproof.properties.call import OutOfTime

_EVERY = 0.02  # seconds between two tries


@contextmanager
def exclusive(device: str, until: float = math.inf) -> Iterator[None]:
    """Wait until no other process holds the lock of this device, and hold it; it is released when its process ends.
    Raises OutOfTime if that takes until that time, by time.monotonic."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
    file = Path(tempfile.gettempdir()) / f"packproof-{os.getuid()}-{device}-{visible}.lock".replace(":", "-")
    with file.open("w") as held:
        while not _taken(held):
            if time.monotonic() >= until:
                raise OutOfTime(f"other processes needed the memory of {device} until the time was up")
            time.sleep(_EVERY)
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
