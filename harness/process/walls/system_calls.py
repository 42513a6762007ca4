"""The system calls of Linux for the walls, as far as Python's `os` lacks them. Each raises OSError."""

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 29, 1 << 30
_MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 13, 1 << 14, 1 << 18
_RDONLY, _NOSUID = 1, 2
# the same numbers on every processor
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_LANDLOCK_VERSION, _PATH_BENEATH = 1, 1

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Move this process, or for CLONE_NEWPID its later children, into new namespaces."""
    _checked(_LIBC.unshare(flags), "unshare")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [text and os.fsencode(text) for text in (source, target, kind, options)]
    result = _LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(result, f"mount {target}")


def mount_new(kind: str, target: str, options: str | None = None) -> None:
    """Mount a new file system of this kind."""
    _mount(kind, target, kind, _NOSUID, options)


def bind(source: str, target: str) -> None:
    """Let a file or a folder appear at a second place."""
    _mount(source, target, None, _MS_BIND)


def move_mount(source: str, target: str) -> None:
    """Move a file system to another place."""
    _mount(source, target, None, _MS_MOVE)


def make_mounts_private() -> None:
    """From now on no mount of this namespace appears in another one."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def make_read_only(path: str, *, recursive: bool = False) -> None:
    """Make a mount read-only in this namespace, with all below it if `recursive`."""
    attributes = struct.pack("<4Q", _RDONLY | _NOSUID, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    result = _LIBC.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(len(attributes))
    )
    _checked(result, f"mount_setattr {path}")


def landlock_version() -> int:
    """The version of landlock's interface; 0 if the system has none."""
    return max(0, int(_LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)))


def landlock_ruleset(attributes: bytes) -> int:
    """A descriptor of a new ruleset."""
    size = ctypes.c_size_t(len(attributes))
    return _checked(_LIBC.syscall(_LANDLOCK_CREATE, attributes, size, 0), "landlock_create_ruleset")


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Allow these rights for a file, or for all that is below a folder."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", rights, descriptor)
        _checked(_LIBC.syscall(_LANDLOCK_ADD, ruleset, _PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)


def landlock_restrict(ruleset: int) -> None:
    """Restrict this process, and all that it starts, to what the ruleset allows."""
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
