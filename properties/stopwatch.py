"""Measures the time of this process in named spans. Each second counts once, in the innermost open span."""

import time
from types import TracebackType

_seconds: dict[str, float] = {}
_open: list["span"] = []
_since = 0.0  # when the innermost open span was entered, or last became the innermost


class span:  # noqa: N801  (read as a verb: with span("draw"))
    """Counts the time inside it under its name.

    inclusive: whether spans opened inside count as part of it.
    """

    __slots__ = ("name", "whole")

    def __init__(self, name: str, *, whole: bool = False) -> None:
        self.name, self.whole = name, whole

    def __enter__(self) -> None:
        _count()
        if _open and _open[-1].whole:
            self.name, self.whole = _open[-1].name, True
        _open.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _count()
        _open.pop()


def _count() -> None:
    """Add the time since the last change to the innermost open span."""
    global _since  # noqa: PLW0603
    now = time.perf_counter()
    if _open:
        add(_open[-1].name, now - _since)
    _since = now


def add(name: str, seconds: float) -> None:
    """Count time without an open span, such as the time before the import of this module."""
    _seconds[name] = _seconds.get(name, 0.0) + seconds


def taken() -> dict[str, float]:
    """Seconds by span since the last call of this function."""
    _count()
    found = dict(_seconds)
    _seconds.clear()
    return found
