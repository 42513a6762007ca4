"""Importing torch and what needs it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import without garbage collection. Objects created until then are never collected."""
    # An import creates many objects and hardly any garbage: each collection walks all of them and frees none.
    # Frozen objects are not walked later either, so that forks do not copy their pages.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
