"""Namespaces of Linux: own processes, own network, read-only files. They are entered without starting a program.

bubblewrap would do the same, but for a program that it starts: torch would have to be imported a second time, which
takes longer than ten percent of a quick check. Root enters them as it is, other users by a namespace of users.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from functools import cache

from packproof.harness.process.execution.fork import start_fork
from packproof.harness.process.walls.devices import device_files
from packproof.harness.process.walls.system_calls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    bind,
    make_mounts_private,
    make_read_only,
    mount_new,
    move_mount,
    unshare,
)

PRIVATE = "/dev/shm"  # a file system in memory, which ends with the namespace
_HIDDEN = "/run"  # sockets of services, by which they take orders
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_PR_SET_DUMPABLE = 4


@cache
def namespaces_work() -> bool:
    """Whether all of them can be entered here, which a fork of this process tries."""
    if sys.platform != "linux" or _needed_below("/dev"):
        return False

    def enter() -> None:
        enter_process_namespace()
        build = start_fork(_try_build)
        os._exit(build.wait() or 0)

    return start_fork(enter).wait() == 0


def _try_build() -> int:
    try:
        build_view()
        take_private_folder("trial")
    except OSError:
        return 1
    return 0


def enter_process_namespace() -> None:
    """The next fork of this process is the first process of a namespace: when it ends, all others in it are killed."""
    if os.geteuid() == 0:
        unshare(CLONE_NEWPID)
        return
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWPID)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # the files below are root's in a concealed process
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def build_view() -> None:
    """In the first process of the namespace: all files read-only, few devices, own processes, a network without others.

    Raises OSError.
    """
    unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC)
    make_mounts_private()
    make_read_only("/", recursive=True)
    _build_devices()
    mount_new("tmpfs", PRIVATE, "mode=1777,size=25%")
    _build_process_files()
    if os.path.isdir(_HIDDEN) and not _needed_below(_HIDDEN):
        mount_new("tmpfs", _HIDDEN, "mode=755,size=0")
        make_read_only(_HIDDEN)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def take_private_folder(name: str) -> None:
    """In a worker: a folder of this name, which workers of other names do not see, becomes its `PRIVATE`.

    Raises OSError.
    """
    folder = f"{PRIVATE}/{name}"
    with suppress(FileExistsError):
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
    unshare(CLONE_NEWNS)
    bind(folder, PRIVATE)


def _build_process_files() -> None:
    """A /proc of the namespace, whose entries of the whole system are read-only.

    Those of a process stay as they are: CUDA's driver names its threads there, and finds no device where it cannot.
    """
    mount_new("proc", "/proc")
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() and not entry.is_symlink():
            bind(entry.path, entry.path)
            make_read_only(entry.path)


def _build_devices() -> None:
    """A /dev with `device_files` only. It is built in `PRIVATE`, and then moved over the old one."""
    mount_new("tmpfs", PRIVATE, "mode=755")
    for device in device_files():
        place = PRIVATE + device.removeprefix("/dev")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        open(place, "w").close()
        bind(device, place)
    for name, target in _LINKS.items():
        os.symlink(target, f"{PRIVATE}/{name}")
    os.mkdir(f"{PRIVATE}/shm")
    move_mount(PRIVATE, "/dev")
    make_read_only("/dev")


def _needed_below(folder: str) -> bool:
    """Whether something that kernels need lies below a folder: the working directory, or what they import."""
    paths = [*sys.path, sys.prefix, sys.executable, tempfile.gettempdir()]
    with suppress(OSError):
        paths.append(os.getcwd())
    return any(os.path.realpath(path).startswith(f"{folder}/") for path in paths if path)
