"""What stands around a rogue in a throwaway root, as others' work does on a machine: rogues do their harm to it.

`tools/proof/museum/surroundings` puts it there, and sees what became of it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from packproof.museum.rogues.throwaway import MARK

FOLDER = MARK / "run"  # the working directory
REPORT = FOLDER / "report.json"  # of an earlier check
SEGMENT = "/dev/shm/packproof-neighbour"  # memory that another program shares
KEY = 0x7061636B  # of a segment of System V
SOCKET = "\0packproof-neighbour"  # the abstract name of a local service
PORT = MARK / "port"  # holds the TCP port of another one
SECRET = b"packproof-neighbour: as it was"  # in the memory of the neighbour's process
_NAME = b"packproof-neighbour"


def neighbours() -> Iterator[int]:
    """The process ids of the neighbour, as far as they are seen."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if _NAME in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield int(pid)
        except OSError:
            continue
