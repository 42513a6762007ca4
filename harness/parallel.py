"""Generators side by side: each runs in a thread, and what they yield comes out in one stream."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def side_by_side(units: Sequence[Callable[[], Iterator[T]]], most: int) -> Iterator[T]:
    """Run the units, at most `most` at a time, in order of their start; yields what they yield as it comes.

    An exception in one ends the stream with that exception. Leaving the stream early, by an exception such as Ctrl-C in
    the caller's thread or by closing it, stops every unit at its next event.
    """
    waiting, lock = deque(units), threading.Lock()
    said: SimpleQueue[T | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        try:
            while not stopped.is_set():
                with lock:
                    if not waiting:
                        break
                    unit = waiting.popleft()
                with closing(unit()) as events:  # type: ignore[type-var]
                    for event in events:
                        if stopped.is_set():
                            return
                        said.put(event)
        except BaseException as error:  # it belongs to the caller's thread
            said.put(error)
        finally:
            said.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(most, len(units)))]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            try:
                event = said.get(timeout=0.2)  # a wait without end would keep Ctrl-C waiting too
            except Empty:
                continue
            if event is None:
                running -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event
    finally:
        stopped.set()
