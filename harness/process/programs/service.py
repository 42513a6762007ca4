"""The side of a program's process: it answers frames of its parent, one after another."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from packproof.harness.process.wire import READ_BYTES, Decoder, Frame, encode
from packproof.harness.process.worker_main import CHANNEL_LOST
from packproof.harness.process.zygote import Zygote


def serve(
    order: Mapping[str, Any], channel: socket.socket, answers: Callable[[Iterator[Frame]], Iterator[Frame]]
) -> int:
    """Answer frames until the parent hangs up. Returns the exit code.

    order: see `worker_main.run_worker`.
    answers: yields a first frame without a request, and then one frame for each request.
    """
    magic = bytes.fromhex(order["magic"])
    try:
        channel.sendall(encode(Frame("begun"), magic))
        try:
            os.chdir(order["cwd"])
        except OSError as error:
            text = f"the working directory {order['cwd']} cannot be entered: {error.strerror}"
            channel.sendall(encode(Frame("unusable", body={"text": text}), magic))
            return 0
        with closing(answers(_requests(channel, magic))) as frames:  # type: ignore[type-var]
            for frame in frames:
                channel.sendall(encode(frame, magic))
    except OSError:
        return CHANNEL_LOST
    return 0


def _requests(channel: socket.socket, magic: bytes) -> Iterator[Frame]:
    decoder = Decoder(magic)
    while True:
        while (frame := decoder.take()) is None:
            data = channel.recv(READ_BYTES)
            if not data:
                return
            decoder.feed(data)
        yield frame


def become_zygote(channel: socket.socket, state: object) -> None:
    """Fork processes from this one, as `ProgramProcess.as_zygote` asks, until the parent hangs up.

    state: what the programs of the forks get.
    """
    _, controls, _, _ = socket.recv_fds(channel, 1, 1)
    for control in controls:  # none if the parent has hung up
        Zygote(socket.socket(fileno=control), lambda: state, preload_compiler=False).serve()
