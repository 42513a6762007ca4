"""The process of a simulated rank. Light: who runs kernels says how to start one, before any imports this package."""

from collections.abc import Callable
from typing import ClassVar, Protocol


class RankProcess(Protocol):
    """The process of a rank, a fork of this one."""

    def kill(self) -> int | None:
        """End it, and wait for its end."""
        ...

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it: it waits for another one."""
        ...


StartFork = Callable[[Callable[[], None]], RankProcess]


class RankProcesses:
    """Those of all ranks that this process simulates."""

    start_fork: ClassVar[StartFork | None] = None
    """Starts a function in a fork of this process; None: ranks run in this process alone."""
