"""Turns at a device, for calls that want most of its memory: one at a time, of all processes of a user."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(device: str) -> Iterator[None]:
    """Wait until no other process holds the turn at this device, and hold it; a process that ends lets go of it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
    file = Path(tempfile.gettempdir()) / f"packproof-{os.getuid()}-{device}-{visible}.lock".replace(":", "-")
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
