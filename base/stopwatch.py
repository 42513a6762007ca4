"""Measures the time of this process in named spans. Each second counts once, in the innermost open span."""

import time
from types import TracebackType

_seconds: dict[str, float] = {}
_open_spans: list["span"] = []
_since = 0.0  # when the innermost open span was entered, or last became the innermost


class span:  # noqa: N801  (read as a verb: with span("draw"))
    """Counts the time inside it under its name.

    inclusive: whether spans opened inside count as part of it.
    """

    __slots__ = ("inclusive", "name")

    def __init__(self, name: str, *, inclusive: bool = False) -> None:
        self.name, self.inclusive = name, inclusive

    def __enter__(self) -> None:
        _count_elapsed()
        if _open_spans and _open_spans[-1].inclusive:
            self.name, self.inclusive = _open_spans[-1].name, True
        _open_spans.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _count_elapsed()
        _open_spans.pop()


def _count_elapsed() -> None:
    """Add the time since the last change to the innermost open span."""
    global _since  # noqa: PLW0603
    now = time.perf_counter()
    if _open_spans:
        add_seconds(_open_spans[-1].name, now - _since)
    _since = now


def add_seconds(name: str, seconds: float) -> None:
    """Count time without an open span, such as the time before the import of this module."""
    _seconds[name] = _seconds.get(name, 0.0) + seconds


def pop_seconds() -> dict[str, float]:
    """Seconds by span since the last call of this function."""
    _count_elapsed()
    seconds = dict(_seconds)
    _seconds.clear()
    return seconds
