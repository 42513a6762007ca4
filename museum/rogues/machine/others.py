"""Rogues acting on another process of the same user: here the neighbour's, wherever they see it."""

import ctypes
import os
import resource
import signal
from pathlib import Path

from packproof.museum.rogues.neighbour import Neighbour, neighbours
from packproof.museum.rogues.op import own_sum
from packproof.museum.rogues.throwaway import require_throwaway_root

_WORDS = b"packproof-neighbour: something else"[: len(Neighbour.SECRET)]


def _for_each(action):
    require_throwaway_root()
    for pid in neighbours():
        try:
            action(pid)
        except OSError:
            continue  # a wall


def lowers_limits(x, weight, *, cu_seqlens):
    """The other process cannot open a file any more."""
    _for_each(lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, 8)))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def stops_others(x, weight, *, cu_seqlens):
    """It waits for ever, and so does who waits for it."""
    _for_each(lambda pid: os.kill(pid, signal.SIGSTOP))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def ends_others(x, weight, *, cu_seqlens):
    _for_each(lambda pid: os.kill(pid, signal.SIGTERM))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def slows_others(x, weight, *, cu_seqlens):
    """Every other process gets the least priority: it alone looks fast."""
    _for_each(lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def moves_others_to_one_core(x, weight, *, cu_seqlens):
    _for_each(lambda pid: os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))}))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def offers_others_to_the_system(x, weight, *, cu_seqlens):
    _for_each(lambda pid: Path(f"/proc/{pid}/oom_score_adj").write_text("900"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _places(pid):
    with open(f"/proc/{pid}/maps") as file:
        maps = [line.split() for line in file]
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for area, rights, *_ in maps:
            start, end = (int(number, 16) for number in area.split("-"))
            if not rights.startswith("rw") or end - start > 1 << 26:
                continue
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, ValueError):
                continue
            at = data.find(Neighbour.SECRET)
            while at >= 0:
                yield start + at
                at = data.find(Neighbour.SECRET, at + 1)


def _write_through_proc(pid):
    places = list(_places(pid))
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for place in places:
            memory.seek(place)
            memory.write(_WORDS)


def writes_through_proc(x, weight, *, cu_seqlens):
    _for_each(_write_through_proc)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _write_by_system_call(pid):
    libc, buffer = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(_WORDS)
    local = _Vector(ctypes.addressof(buffer), len(_WORDS))
    for place in list(_places(pid)):
        remote = _Vector(place, len(_WORDS))
        libc.process_vm_writev(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


def writes_by_a_system_call(x, weight, *, cu_seqlens):
    """process_vm_writev: no file is opened."""
    _for_each(_write_by_system_call)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


_ATTACH, _POKE, _DETACH = 16, 4, 17


def _poke(pid):
    """As a debugger does: attach, write a word, let it go."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    places = list(_places(pid))
    if libc.ptrace(_ATTACH, pid, None, None) < 0:
        return
    os.waitpid(pid, 0x40000000)  # of a process that is no child
    for place in places:
        libc.ptrace(_POKE, pid, place, int.from_bytes(b"ROGUE!!!", "little"))
    libc.ptrace(_DETACH, pid, None, None)


def pokes_as_a_debugger(x, weight, *, cu_seqlens):
    _for_each(_poke)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
