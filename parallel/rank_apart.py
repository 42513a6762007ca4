"""A rank in a process of its own, where nothing reaches it from the others but what they exchanged.

Ranks simulated in one process share its memory: a variable of a module that one rank has set is there for the next one,
and real ranks would compute something else. So each rank runs twice. Beside the others what they exchange is recorded;
alone, in a fork taken before any of them has run, it gets what was recorded, and these are the values that count.
"""

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from packproof.base.errors import PackproofError
from packproof.parallel.rank_process import StartFork
from packproof.parallel.simulated_group import SimulatedGroup

_SIZES = struct.Struct("<QQ")  # bytes of JSON and of safetensors
_LOOK_SECONDS = 0.5  # between two looks at a process that has not answered
_NO_MESSAGE = (struct.error, ValueError, KeyError, MemoryError, SafetensorError)
Program = Callable[[SimulatedGroup], Any]


class _RankMessage(NamedTuple):
    """What a rank and its fork send each other."""

    words: Any
    """A JSON value: the exchanges with the number of tensors of each, or an error."""
    tensors: Sequence[Tensor]


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
        exchanges = self._group.exchanges or []
        operations = [(operation, len(values)) for operation, values in exchanges]
        _send(self._end, operations, [x for _, values in exchanges for x in values])
        error, values = self._answer() or _RankMessage("its process was ended or stopped", [])
        tensors = list(_tensors(result))
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

    def _answer(self) -> _RankMessage | None:
        while not select.select([self._end], [], [], _LOOK_SECONDS)[0]:
            if self._fork.is_stopped():
                return None
        return _receive(self._end)

    def end(self) -> None:
        self._group.exchanges = None
        self._end.close()
        self._fork.kill()


def _repeat(group: SimulatedGroup, program: Program, end: socket.socket, has_gradients: bool) -> None:
    """Run a rank alone, and send its values."""
    message = _receive(end)
    if message is None:
        return
    received = iter(message.tensors)
    exchanges = [(operation, [next(received) for _ in range(n)]) for operation, n in message.words]
    error, values = "", list[Tensor]()
    try:
        with torch.set_grad_enabled(has_gradients), torch.autograd.set_multithreading_enabled(False):
            group.recorded = iter(exchanges)
            result = program(group)
        values = [x.detach().clone() for x in _tensors(result)]
    except Exception as exception:
        error = f"{type(exception).__name__}: {str(exception).partition(chr(10))[0]}"
    _send(end, error, values)


def _send(end: socket.socket, words: Any, tensors: Sequence[Tensor]) -> None:
    text = json.dumps(words).encode()
    # safetensors rejects views and tensors that share memory
    copies = {str(i): x.detach().clone(memory_format=torch.contiguous_format) for i, x in enumerate(tensors)}
    payload = safetensors.torch.save(copies)
    with suppress(ConnectionError):  # the other process has ended
        end.sendall(_SIZES.pack(len(text), len(payload)) + text + payload)


def _receive(end: socket.socket) -> _RankMessage | None:
    """What the other process sent; None if it has ended, or has sent something else than a message."""
    with end.makefile("rb") as stream, suppress(ConnectionError, *_NO_MESSAGE):
        text, payload = [stream.read(size) for size in _SIZES.unpack(stream.read(_SIZES.size))]
        by_number = safetensors.torch.load(payload)
        return _RankMessage(json.loads(text), [by_number[str(i)] for i in range(len(by_number))])
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)
