"""Values of a call that go where operators of torch are not seen: to numpy, Python's numbers, a thread, a process.

What computes with them there is unseen. A thread or process that was started before the call is not seen either.
"""

import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from packproof.harness.process.execution.provenance.ownership import Ownership

_EXITS = frozenset({Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__})
_STARTS = ("os.fork", "os.posix_spawn", "subprocess.Popen")
_PASSED_OVER = (sysconfig.get_paths()["stdlib"], str(Path(torch.__file__).parent), "<")
_INSTALLED = ("site-packages", "dist-packages")
_NUMPY = "/numpy/"

Record = Callable[[str], None]


class Departures(TorchFunctionMode):
    """Reports what leaves torch from code of the kernel's own while it is entered."""

    def __init__(self, ownership: Ownership, record: Record) -> None:
        super().__init__()
        self._ownership, self._record = ownership, record

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Report values that leave torch, and threads and processes that start."""
        _listen()
        _LISTENERS.append(self)
        start = threading._start_new_thread  # type: ignore[attr-defined]

        def start_reported(*args: Any) -> Any:
            self.report("a new thread", sys._getframe(1))
            return start(*args)

        # Python 3.11 has no audit event of it
        threading._start_new_thread = start_reported  # type: ignore[attr-defined]
        try:
            with self:
                yield
        finally:
            threading._start_new_thread = start  # type: ignore[attr-defined]
            _LISTENERS.remove(self)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _EXITS and args[0].is_floating_point() and args[0].numel():
            self.report(f"Tensor.{function.__name__}", sys._getframe(1))
        return function(*args, **(kwargs or {}))

    def report(self, name: str, frame: FrameType | None) -> None:
        """Record it, if code of the kernel's own has called it through nothing but torch, numpy or Python's library."""
        while frame is not None and _is_passed_over(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and self._ownership.owns(frame.f_code.co_filename):
            self._record(name)


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
