"""Ctrl-C where an exception would be lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C is raised at the end of the block, not inside it: Python prints and forgets what is raised in a hook of
    `os.fork`, and a fork of a large process takes long. A process that is forked inside never gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
