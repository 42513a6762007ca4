"""Rogues destroying the working directory, or what is mounted."""

import ctypes
import os
from pathlib import Path

import packproof
from packproof.museum.rogues.neighbour import FOLDER
from packproof.museum.rogues.op import own_sum
from packproof.museum.rogues.throwaway import require_throwaway_root

_ASIDE = FOLDER.with_name("aside")


def _try(action):
    require_throwaway_root()
    try:
        action()
    except OSError:
        pass  # a wall


def renames_its_working_directory(x, weight, *, cu_seqlens):
    """A relative path leads nowhere afterwards."""
    _try(lambda: FOLDER.exists() and FOLDER.rename(_ASIDE))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _become_a_link():
    FOLDER.rename(_ASIDE)
    FOLDER.symlink_to("/")


def makes_its_working_directory_the_root(x, weight, *, cu_seqlens):
    """Whoever cleans up that folder next removes the machine's files."""
    if not FOLDER.is_symlink():
        _try(_become_a_link)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _empty(folder):
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()


def empties_the_callers_folder(x, weight, *, cu_seqlens):
    """Replay files and reports of earlier runs are gone."""
    _try(lambda: _empty(FOLDER))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _mount_over(folder):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), b"size=64k"):
        raise OSError(ctypes.get_errno(), "mount")


def mounts_over_packproof(x, weight, *, cu_seqlens, _done=[]):
    """As root: an empty file system hides a folder of packproof."""
    if not _done:
        _done.append(1)
        _try(lambda: _mount_over(Path(packproof.__file__).resolve().parent.parent / "museum/models"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
