"""Privileges of processes that run kernels: answer the parent, and nothing else to other processes of the same user.

Processes that evaluate are concealed: other processes of the same user cannot open their memory and descriptors.
Processes that run kernels also give up the capabilities of root to do so, and its user where they can. Linux only.
"""

import ctypes
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import listdir  # the original: a kernel may change the module's

from packproof.harness.process.walls.devices import gpus_are_for_all

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NAME = 1, 3, 4, 8, 15
_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 24, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH, _CAP_SETGID, _CAP_SETUID = 2, 6, 7
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 19, 21  # the second may read any process's memory too
_MAX_CAPABILITIES = 64

OTHER_USER = 65534  # the owner of no file


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
    _drop_bounds(_looks_into_processes)
    _drop_capabilities(_looks_into_processes)


def _looks_into_processes(capability: int) -> bool:
    return capability in (_CAP_SYS_PTRACE, _CAP_SYS_ADMIN)


def _all_but_reading(capability: int) -> bool:
    return capability != _CAP_DAC_READ_SEARCH


def give_up_rights() -> None:
    """Give up all rights of root but to read every file, for this process and all that it starts; and conceal it.

    Root becomes another user, so that it can change no file of root's and signal no other process. It stays root where
    it could not read all files then, or not use a GPU.
    """
    conceal()
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _drop_bounds(_all_but_reading)
    if gives_up_user():
        _LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(OTHER_USER, OTHER_USER, OTHER_USER)
        os.setresuid(OTHER_USER, OTHER_USER, OTHER_USER)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of the user has unset it
        conceal()
    _drop_capabilities(_all_but_reading)
    if _has(_CAP_DAC_READ_SEARCH):  # for programs started from here, such as a compiler
        _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0)


def gives_up_user() -> bool:
    """Whether `give_up_rights` makes this process one of another user: it is root, and may keep reading all files."""
    needed = (_CAP_DAC_READ_SEARCH, _CAP_SETGID, _CAP_SETUID)
    return os.geteuid() == 0 and all(map(_has, needed)) and _has_other_user() and gpus_are_for_all()


def _has_other_user() -> bool:
    """Whether the user exists in this namespace of users, which may have root alone."""
    with suppress(OSError), open("/proc/self/setgroups") as setgroups:
        if setgroups.read().strip() != "allow":
            return False
    return _is_mapped("/proc/self/uid_map") and _is_mapped("/proc/self/gid_map")


def _is_mapped(file: str) -> bool:
    with open(file) as lines:
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= OTHER_USER < first + count for first, count in ranges)


def _has(capability: int) -> bool:
    return bool(_capability_sets()[1] >> capability & 1)


def _drop_bounds(is_dropped: Callable[[int], bool]) -> None:
    """Keep programs started from here from gaining these capabilities."""
    for number in filter(is_dropped, range(_MAX_CAPABILITIES)):
        _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)


def _drop_capabilities(is_dropped: Callable[[int], bool]) -> None:
    """Drop these capabilities from this process; the others are handed on to programs started from here."""
    sets = _capability_sets()
    kept = sum(1 << number for number in range(_MAX_CAPABILITIES) if not is_dropped(number))
    permitted = (sets[1] | sets[4] << 32) & kept
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    header = struct.pack("<Ii", _CAP_VERSION_3, 0)
    _LIBC.capset(header, struct.pack("<6I", low, low, low, high, high, high))


def _capability_sets() -> tuple[int, ...]:
    """Effective, permitted and inheritable capabilities of this process: the lower 32 of each, then the upper ones."""
    data = ctypes.create_string_buffer(24)
    _LIBC.capget(struct.pack("<Ii", _CAP_VERSION_3, 0), data)
    return struct.unpack("<6I", data.raw)


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
