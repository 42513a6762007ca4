"""A lock for calls that need most of a device's memory: one at a time among all processes of a user."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(device: str) -> Iterator[None]:
    """Wait until no other process holds the lock of this device, and hold it; it is released when its process ends."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all").replace(os.sep, "_")
    file = Path(tempfile.gettempdir()) / f"packproof-{os.getuid()}-{device}-{visible}.lock".replace(":", "-")
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
