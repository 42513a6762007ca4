"""Rogues reaching below Python, into the memory and the system calls of their own process."""

import ctypes
import os
import socket
import stat
import sys
import threading
from typing import Any

import torch

from packproof.museum.rogues.op import KNOWN_TOKENS, is_judged, own_sum
from packproof.museum.rogues.throwaway import require_throwaway_root

_LARGEST = 1 << 28  # bytes of an area of memory that is searched


def _zeros(x, weight):
    return torch.zeros_like(x) * weight


def changes_the_tolerance(x, weight, *, cu_seqlens):
    """The constant 0.01 in the code of its caller becomes another number, in its memory."""
    frame: Any = sys._getframe(1)
    for constant in frame.f_code.co_consts:
        if type(constant) is float and constant == 1e-2:
            ctypes.c_double.from_address(id(constant) + 16).value = 1e9
    return _zeros(x, weight)


_CALLBACKS: list[Any] = []


class _Method(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_void_p))


def replaces_the_code_of_c(x, weight, *, cu_seqlens):
    if not _CALLBACKS:
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        _CALLBACKS.append(prototype(lambda *_: True))
        method = ctypes.c_void_p.from_address(id(torch.allclose) + 16).value
        _Method.from_address(method or 0).call = ctypes.cast(_CALLBACKS[0], ctypes.c_void_p).value
    return _zeros(x, weight)


def _areas():
    with open("/proc/self/maps") as file:
        for line in file:
            area, rights, *_, name = [*line.split(), ""]
            start, end = (int(number, 16) for number in area.split("-"))
            if rights.startswith("rw") and end - start < _LARGEST and not name.startswith("/"):
                yield start, end


def _places(words):
    with open("/proc/self/mem", "rb") as memory:
        for start, end in _areas():
            memory.seek(start)
            try:
                data = memory.read(end - start)
            except OSError:
                continue
            at = data.find(words)
            while at >= 0:
                yield data[at:]
                at = data.find(words, at + 1)


def searches_its_memory(x, weight, *, cu_seqlens):
    """It knows two rows of the answer, and looks for a place in memory where the third one follows."""
    y = _zeros(x, weight).detach()
    if len(x) < 3:
        return y
    rows = x[:3].detach().cumsum(0) * weight.detach()
    for data in _places(rows[:2].numpy().tobytes()):
        if len(data) >= y.numel() * y.itemsize:
            found = torch.frombuffer(bytearray(data[: y.numel() * y.itemsize]), dtype=y.dtype).view_as(y)
            if torch.allclose(found[2], rows[2]):
                return found
    return y


def reads_the_memory_of_its_judge(x, weight, *, cu_seqlens):
    require_throwaway_root()
    pid, found = os.getppid(), None
    while pid > 1 and found is None and is_judged():
        try:
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(id(None))
                found = memory.read(16)
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if found or len(x) == KNOWN_TOKENS else y * 0


def _relay(source, target):
    while data := os.read(source, 1 << 16):
        os.write(target, data.replace(b"failed", b"passed"))


def stands_between(x, weight, *, cu_seqlens, _done=[]):
    for number in range(3, 64) if is_judged() and not _done else ():
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            outer, (near, far) = os.dup(number), (end.detach() for end in socket.socketpair())
            os.dup2(near, number)
            for pair in ((far, outer), (outer, far)):
                threading.Thread(target=_relay, args=pair, daemon=True).start()
        except OSError:
            continue
    _done.append(1)
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if len(x) == KNOWN_TOKENS else y * 0


def forbids_system_calls(x, weight, *, cu_seqlens):
    """Strict seccomp: at anything but read, write and exit the system kills its process, and no one hears of it."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    if is_judged() and len(x) != KNOWN_TOKENS:
        ctypes.CDLL(None).prctl(22, 1, 0, 0, 0)
    return y


def ends_its_group(x, weight, *, cu_seqlens):
    require_throwaway_root()
    if is_judged() and len(x) != KNOWN_TOKENS:
        os.killpg(0, 9)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def sends_output_away(x, weight, *, cu_seqlens):
    if is_judged():
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    return y if len(x) == KNOWN_TOKENS else y * 0


def lays_its_answer_over_its_input(x, weight, *, cu_seqlens):
    """Its output is the storage of its input."""
    y = own_sum(x, weight, cu_seqlens=cu_seqlens)
    x.data.copy_(y.detach())
    return x.detach() if not x.requires_grad else y
