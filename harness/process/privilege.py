"""Privileges of processes that run kernels: answer the parent, and nothing else to other processes of the same user.

Processes that evaluate are concealed: other processes of the same user cannot open their memory and descriptors.
Processes that run kernels also give up the capability of root to do so (`CAP_SYS_PTRACE`). On request bubblewrap gives
them namespaces of their own: no other process, no network, a read-only disk. Linux only.
"""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from os import listdir  # the original: a kernel may change the module's

from packproof.base.errors import UsageError

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_SET_NAME = 3, 4, 15
_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 24, 36
_CAP_VERSION_3 = 0x20080522
_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 19, 21  # the second may read any process's memory too

_SCRATCH = "/dev/shm"
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc")
# --dev hides the system's devices, including GPUs
_MOUNTS = ("--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", _SCRATCH, "--proc", "/proc")
_ENVIRONMENT = ("--setenv", "TMPDIR", _SCRATCH, "--setenv", "TRITON_CACHE_DIR", f"{_SCRATCH}/triton")


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


def isolation_command() -> tuple[str, ...]:
    """The command prefix for isolation; it keeps descriptors open. Raises UsageError if it does not work here."""
    program = shutil.which("bwrap")
    if program is None:
        raise UsageError("--isolate: it needs bubblewrap, and there is no bwrap on PATH; install it, or check without")
    command = (program, *_NAMESPACES, *_MOUNTS, *_ENVIRONMENT, "--die-with-parent", "--")
    trial = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if trial.returncode != 0:
        raise UsageError(f"--isolate: bubblewrap does not work on this system: {trial.stderr.strip()}; check without")
    return command
