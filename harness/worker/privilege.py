"""Privileges of processes that run kernels: answer the parent, and nothing else to other processes of the same user.

Processes that evaluate are concealed: other processes of the same user cannot open their memory and descriptors.
Processes that run kernels also give up the capability of root to do so (`CAP_SYS_PTRACE`). Linux only.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from os import listdir  # the original: a kernel may change the module's

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 3, 4, 15
_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 24, 36
_CAP_VERSION_3 = 0x20080522
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 19, 21  # the second may read any process's memory too


def conceal() -> None:
    """Hide the memory and the descriptors of this process from other processes of the same user."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


_blocks: list[bool] = []  # the open blocks of `concealment`: whether the first one has to undo it


@contextmanager
def concealment() -> Iterator[None]:
    """`conceal` until this block and every other such block has ended, in any order."""
    _blocks.append(_blocks[0] if _blocks else not is_concealed())
    conceal()
    try:
        yield
    finally:
        if _blocks.pop() and not _blocks:
            _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def is_concealed() -> bool:
    """Whether other processes of the same user cannot look into this process."""
    return bool(_LIBC.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1)


def confine() -> None:
    """Conceal this process, and bar it from looking into concealed ones, even as root."""
    conceal()
    header = struct.pack("<Ii", _CAP_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    if _LIBC.capget(header, data) != 0:
        return
    sets = list(struct.unpack("<6I", data.raw))
    if not sets[1] >> _CAP_SYS_PTRACE & 1:
        return
    for capability in (_CAP_SYS_PTRACE, _CAP_SYS_ADMIN):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # also for programs started from here
        sets[:3] = [mask & ~(1 << capability) for mask in sets[:3]]
    _LIBC.capset(header, struct.pack("<6I", *sets))


def end_with_parent(parent: int) -> bool:
    """Be killed when the process that forked this one ends; False if it has already ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
    return os.getppid() == parent


def set_process_name(name: str) -> None:
    """Set the name of this process and its forks in `ps` and `top`, 15 characters at most."""
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in any session."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def child_pids() -> list[int]:
    """The ids of this process's children, zombies included."""
    pids: list[int] = []
    for thread in listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                pids += map(int, file.read().split())
        except OSError:
            continue  # the thread has ended, or this kernel was built without the list
    return pids
