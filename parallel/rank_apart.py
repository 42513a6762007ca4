"""A rank in a process of its own, where nothing reaches it from the others but what they exchanged.

Ranks simulated in one process share its memory: a variable of a module that one rank has set is there for the next one,
and real ranks would compute something else. So each rank runs twice. Beside the others what they exchange is recorded;
alone, in a fork taken before any of them has run, it gets what was recorded, and these are the values that count.
"""

import io
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from packproof.base.errors import PackproofError
from packproof.parallel.simulated_group import SimulatedGroup

_LENGTH = struct.Struct("<Q")
Program = Callable[[SimulatedGroup], Any]


class RankProcess(Protocol):
    """The process of a rank, a fork of this one."""

    def kill(self) -> int | None:
        """End it, and wait for its end."""
        ...


StartFork = Callable[[Callable[[], None]], RankProcess]


class RankApart:
    """A fork that repeats what a rank is about to compute.

    group: of the rank; its exchanges are recorded from now on.
    program: what the rank runs.
    """

    def __init__(self, group: SimulatedGroup, program: Program, start_fork: StartFork) -> None:
        self._group, group.exchanges = group, []
        self._end, end = socket.socketpair()
        has_gradients = torch.is_grad_enabled()

        def run() -> None:
            self._end.close()
            for number in (1, 2):  # what it prints is printed beside the others
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            thread = threading.Thread(target=_repeat, args=(group, program, end, has_gradients))
            thread.start()
            thread.join()

        self._fork = start_fork(run)
        end.close()

    def replace_values(self, result: Any) -> None:
        """Put its values into the result of the rank beside the others, whose graph is kept.

        Raises PackproofError if it raised something.
        """
        _send(self._end, self._group.exchanges)
        answer = _receive(self._end) or {"error": "its process ended", "values": []}
        tensors, values, error = list(_tensors(result)), answer["values"], answer["error"]
        if error or [x.shape for x in tensors] != [x.shape for x in values]:
            reason = error or "it returns tensors of other shapes"
            raise PackproofError(
                f"rank {self._group.rank()} of {self._group.size()}, alone and with what the others sent it, does not "
                f"compute what it computed beside them: {reason}. Ranks share no memory: what one needs of another has "
                "to be exchanged by the group"
            )
        for x, value in zip(tensors, values, strict=True):
            if not bool(((x == value) | (x.isnan() & value.isnan())).all()):
                x.data.copy_(value)

    def end(self) -> None:
        self._group.exchanges = None
        self._end.close()
        self._fork.kill()


def _repeat(group: SimulatedGroup, program: Program, end: socket.socket, has_gradients: bool) -> None:
    """Run a rank alone, and send its values."""
    exchanges = _receive(end)
    if exchanges is None:
        return
    error, values = "", list[Tensor]()
    try:
        with torch.set_grad_enabled(has_gradients), torch.autograd.set_multithreading_enabled(False):
            group.recorded = iter(exchanges)
            result = program(group)
        values = [x.detach().clone() for x in _tensors(result)]
    except Exception as exception:
        error = f"{type(exception).__name__}: {str(exception).partition(chr(10))[0]}"
    _send(end, {"error": error, "values": values})


def _send(end: socket.socket, value: Any) -> None:
    data = io.BytesIO()
    torch.save(value, data)
    with suppress(ConnectionError):  # the other process has ended
        end.sendall(_LENGTH.pack(data.tell()) + data.getvalue())


def _receive(end: socket.socket) -> Any:
    """What the other process sent; None if it has ended."""
    with end.makefile("rb") as stream:
        size = stream.read(_LENGTH.size)
        return torch.load(io.BytesIO(stream.read(*_LENGTH.unpack(size))), weights_only=True) if size else None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)
