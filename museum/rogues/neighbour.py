"""The work of others around a rogue, in a throwaway root: rogues do their harm to it.

`tools/proof/museum/surroundings` puts it there, and sees its changes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from packproof.museum.rogues.throwaway import MARK

_NAME = b"packproof-neighbour"


class Neighbour:
    """Where it is."""

    FOLDER = MARK / "run"  # the working directory
    REPORT = FOLDER / "report.json"  # of an earlier check
    SEGMENT = "/dev/shm/packproof-neighbour"  # memory shared by another program
    KEY = 0x7061636B  # of a segment of System V
    SOCKET = "\0packproof-neighbour"  # the abstract name of a local service
    PORT = MARK / "port"  # holds the TCP port of another one
    SECRET = b"packproof-neighbour: as it was"  # in the memory of its process


def neighbours() -> Iterator[int]:
    """The process ids of the neighbour, as far as they are seen."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if _NAME in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield int(pid)
        except OSError:
            continue
