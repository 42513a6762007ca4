"""Landlock: a process gives up rights for itself and all that it starts. It needs no privilege, also in containers.

It is the second wall around files, after read-only mounts, and the only one where the system allows no namespaces.
"""

import os
import struct
from collections.abc import Sequence

from packproof.harness.process.walls.system_calls import (
    landlock_allow,
    landlock_restrict,
    landlock_ruleset,
    landlock_version,
)

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# to remove, to make of any kind, to move between folders, to truncate
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 14))
_FIRST_VERSION = {13: 2, 14: 3}  # of rights by their bits; the others are of version 1
_TCP, _OTHERS = 0b11, 0b11  # bind and connect; abstract sockets and signals
_TCP_VERSION, _OTHERS_VERSION = 4, 6


def covers_files() -> bool:
    """Whether landlock keeps files from every change of their contents. Before version 3 they could be truncated."""
    return landlock_version() >= _FIRST_VERSION[14]


def restrict_writing(folder: str, others: Sequence[str]) -> None:
    """Write, remove and make files below this folder only, open no TCP connection, and signal only own descendants.

    others: files, and folders of files, that can be written, too.

    What this version of the system does not know is left out. `PR_SET_NO_NEW_PRIVS` has to be set. Raises OSError.
    """
    version = landlock_version()
    if not version:
        return
    all_rights = _WRITE_FILE | _CHANGE_FOLDERS | _TRUNCATE
    rights = sum(1 << bit for bit in range(15) if all_rights >> bit & 1 and version >= _FIRST_VERSION.get(bit, 1))
    attributes = struct.pack("<Q", rights)
    attributes += struct.pack("<Q", _TCP) if version >= _TCP_VERSION else b""
    attributes += struct.pack("<Q", _OTHERS) if version >= _OTHERS_VERSION else b""
    ruleset = landlock_ruleset(attributes)
    try:
        landlock_allow(ruleset, folder, rights)
        for path in others:
            landlock_allow(ruleset, path, rights & (_WRITE_FILE | _TRUNCATE))
        landlock_restrict(ruleset)
    finally:
        os.close(ruleset)
