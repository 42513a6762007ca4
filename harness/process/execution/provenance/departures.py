"""Values of a call that go where operators of torch are not seen: to numpy, Python's numbers, a thread, a process.

What computes with them there is unseen. A thread or process that was started before the call is not seen either.
"""

import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from packproof.harness.process.execution.provenance.ownership import Ownership

_EXITS = ("numpy", "tolist", "__array__", "__dlpack__")  # methods; a mode of functions is off in a backward pass
_STARTS = ("os.fork", "os.posix_spawn", "subprocess.Popen")
_PASSED_OVER = (sysconfig.get_paths()["stdlib"], str(Path(torch.__file__).parent), "<")
_INSTALLED = ("site-packages", "dist-packages")
_NUMPY = "/numpy/"

Record = Callable[[str], None]


class Departures:
    """Reports what leaves torch from code of the kernel's own.

    record: called with the name of each, such as "Tensor.numpy".
    """

    def __init__(self, ownership: Ownership, record: Record) -> None:
        self._ownership, self._record = ownership, record

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Report values that leave torch, and threads and processes that start."""
        _listen()
        with ExitStack() as replacements:
            for name in _EXITS:
                replacements.enter_context(replaced(Tensor, name, self._reporting_exit(name)))
            # Python 3.11 has no audit event of it
            replacements.enter_context(replaced(threading, "_start_new_thread", self._reporting_start()))
            _LISTENERS.append(self)
            replacements.callback(_LISTENERS.remove, self)
            yield

    def _reporting_exit(self, name: str) -> Callable[..., Any]:
        original = getattr(Tensor, name)

        def leave(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            if x.is_floating_point() and x.numel():
                self.report(f"Tensor.{name}", sys._getframe(1))
            return original(x, *args, **kwargs)

        return leave

    def _reporting_start(self) -> Callable[..., Any]:
        original = threading._start_new_thread  # type: ignore[attr-defined]

        def start(*args: Any) -> Any:
            self.report("a new thread", sys._getframe(1))
            return original(*args)

        return start

    def report(self, name: str, frame: FrameType | None) -> None:
        """Record it, if code of the kernel's own has called it through nothing but torch, numpy or Python's library."""
        while frame is not None and _is_passed_over(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and self._ownership.owns(frame.f_code.co_filename):
            self._record(name)


@contextmanager
def replaced(namespace: Any, name: str, value: Any) -> Iterator[None]:
    original = vars(namespace).get(name)  # None for a method of a base class
    setattr(namespace, name, value)
    try:
        yield
    finally:
        if original is None:
            delattr(namespace, name)
        else:
            setattr(namespace, name, original)


def _is_passed_over(file: str) -> bool:
    is_numpy = _NUMPY in file and any(name in file for name in _INSTALLED)
    is_library = file.startswith(_PASSED_OVER) and not any(name in file for name in _INSTALLED)
    return is_numpy or is_library or file.startswith(_PASSED_OVER[1])


_LISTENERS: list[Departures] = []


@cache
def _listen() -> None:
    """Hear of processes from now on: such a hook of Python stays."""
    sys.addaudithook(_hear)


def _hear(event: str, _: Any) -> None:
    if _LISTENERS and event in _STARTS:
        _LISTENERS[-1].report("a new process", sys._getframe(1))
