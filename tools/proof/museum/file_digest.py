"""Digests of all folders of a machine: what a run has changed in them, wherever it was."""

import hashlib
import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

_SYSTEM = ("/proc", "/sys", "/dev/pts")  # files that the system makes up

_CLOCK_SECONDS = 1  # by which the clock of files may be late

Digests = Mapping[str, str]


def folder_digests(root: str = "/", *, without: Collection[str] = ()) -> Digests:
    """A digest of each folder, of its own entries alone, by its path.

    without: folders to leave out.
    """
    digests, folders = {}, [root]
    while folders:
        folder = folders.pop()
        digests[folder], inner = folder_digest(folder, without)
        folders += inner
    return digests


def folder_digest(folder: str, without: Collection[str] = ()) -> tuple[str, list[str]]:
    """A digest of its entries: names, kinds, modes, owners, sizes, times of the last changes; and the folders in it.

    Contents need not be read: a program cannot set the time of the last change of an entry. "" if there is no folder.
    """
    digest, inner = hashlib.sha256(), []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.path in (*_SYSTEM, *without):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
                digest.update(_description(entry).encode(errors="surrogateescape"))
    except OSError:
        return "", []
    return digest.hexdigest(), inner


def changed_folders(before: Digests, after: Digests) -> list[str]:
    """The folders that were made, removed, or whose entries are others."""
    return sorted(folder for folder in {*before, *after} if before.get(folder, "") != after.get(folder, ""))


def has_changed_since(folder: Path, seconds: float) -> bool:
    """Whether a folder or one of its entries has changed since then, by time.time(); its parent's, if it is gone."""
    while not folder.is_dir():
        folder = folder.parent
    with suppress(OSError):
        paths = (folder, *folder.iterdir())
        return any(path.lstat().st_ctime >= seconds - _CLOCK_SECONDS for path in paths)
    return True  # it changes as it is read


def _description(entry: "os.DirEntry[str]") -> str:
    fields: list[object] = [entry.name]
    with suppress(OSError):  # it has just been removed
        status = entry.stat(follow_symlinks=False)
        fields += [status.st_mode, status.st_uid, status.st_gid]
        if not stat.S_ISDIR(status.st_mode):  # a folder has a digest of its own
            fields += [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return "\0".join(map(str, fields))
