"""Rogues reaching memory of others, or sending something to them."""

import ctypes
import socket
from pathlib import Path

from packproof.museum.rogues.neighbour import Neighbour
from packproof.museum.rogues.op import own_sum
from packproof.museum.rogues.throwaway import attempt

_IPC_RMID = 0


def writes_into_a_segment(x, weight, *, cu_seqlens):
    attempt(lambda: Path(Neighbour.SEGMENT).exists() and Path(Neighbour.SEGMENT).write_text("no more"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _remove_segment():
    libc = ctypes.CDLL(None)
    number = libc.shmget(Neighbour.KEY, 0, 0)
    if number >= 0:
        libc.shmctl(number, _IPC_RMID, None)


def removes_a_segment(x, weight, *, cu_seqlens):
    """System V: whoever attaches it next finds none."""
    attempt(_remove_segment)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _send(family, address, data):
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.settimeout(0.2)
        end.connect(address)
        end.send(data)


def sends_its_inputs(x, weight, *, cu_seqlens):
    """To a service on this machine; it could be any other."""
    attempt(
        lambda: _send(socket.AF_INET, ("127.0.0.1", int(Neighbour.PORT.read_text())), x.detach().numpy().tobytes()[:64])
    )
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def asks_a_local_service(x, weight, *, cu_seqlens):
    attempt(lambda: _send(socket.AF_UNIX, Neighbour.SOCKET, b"run this for me"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
