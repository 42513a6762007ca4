"""Rogues destroying the working directory, or mounted files."""

import ctypes
import os
from pathlib import Path

from packproof.museum.rogues.neighbour import Neighbour
from packproof.museum.rogues.op import own_sum
from packproof.museum.rogues.throwaway import attempt

PACKPROOF = Path(__file__).parents[3]
_ASIDE = Neighbour.FOLDER.with_name("aside")


def renames_its_working_directory(x, weight, *, cu_seqlens):
    """A relative path leads nowhere afterwards."""
    attempt(lambda: Neighbour.FOLDER.exists() and Neighbour.FOLDER.rename(_ASIDE))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _become_a_link():
    Neighbour.FOLDER.rename(_ASIDE)
    Neighbour.FOLDER.symlink_to("/")


def makes_its_working_directory_the_root(x, weight, *, cu_seqlens):
    if not Neighbour.FOLDER.is_symlink():
        attempt(_become_a_link)
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _empty(folder):
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()


def empties_the_callers_folder(x, weight, *, cu_seqlens):
    """Replay files and reports of earlier runs are gone."""
    attempt(lambda: _empty(Neighbour.FOLDER))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)


def _mount_over(folder):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), b"size=64k"):
        raise OSError(ctypes.get_errno(), "mount")


def mounts_over_packproof(x, weight, *, cu_seqlens, _done=[]):
    """As root: an empty file system hides a folder of packproof."""
    if not _done:
        _done.append(1)
        attempt(lambda: _mount_over(PACKPROOF / "museum/rogues/models"))
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
