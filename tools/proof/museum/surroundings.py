"""What a rogue changes around it: files, another process, shared memory, and what it sends to local services.

For a throwaway root only, in which nothing else runs and all is thrown away.
"""

import ctypes
import os
import select
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from packproof.museum.rogues import Neighbour, require_throwaway_root

_SETTLE = 1.5  # seconds for what a rogue does once its call has returned
_START, _ANSWER = 60, 5  # seconds in which the neighbour answers at first, and later unless it was ended or stopped
_NEIGHBOUR = (
    "import ctypes, sys\nbuffer = ctypes.create_string_buffer(sys.argv[2].encode())\n"
    "for _ in sys.stdin: print(buffer.value.decode(errors='replace'), flush=True)"
)
_FILES = {
    Neighbour.REPORT: "every verdict as it was",
    Neighbour.FOLDER / "failure.json": "{}",
    Path(Neighbour.SEGMENT): "as it was",
}
_IPC_CREAT, _OWN_ALONE, _BYTES = 0o1000, 0o600, 4096


@dataclass
class Surroundings:
    """A neighbour: files of a working directory, a process, shared memory, services. As a context it ends them.

    Raises RuntimeError outside of a throwaway root.
    """

    _resources: ExitStack = field(default_factory=ExitStack)
    _before: dict[str, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        require_throwaway_root()
        for path, text in _FILES.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        self._services = [
            self._listen(socket.AF_INET, ("127.0.0.1", 0)),
            self._listen(socket.AF_UNIX, Neighbour.SOCKET),
        ]
        Neighbour.PORT.write_text(str(self._services[0].getsockname()[1]))
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _NEIGHBOUR, "packproof-neighbour", Neighbour.SECRET.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._resources.callback(self._end_process)
        self._segment = _shared_segment()
        self._answer(_START)
        self._before = self._state()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def process_id(self) -> int:
        """Of the neighbour's process."""
        return self._process.pid

    def changes(self) -> list[str]:
        """What is not as it was, each in a few words. It waits a moment for what comes late."""
        time.sleep(_SETTLE)
        after = self._state()
        names = [name for name in {**self._before, **after} if self._before.get(name) != after.get(name)]
        return sorted(names)

    def _listen(self, family: int, address: "tuple[str, int] | str") -> socket.socket:
        service = self._resources.enter_context(socket.socket(family, socket.SOCK_STREAM))
        service.bind(address)
        service.listen()
        return service

    def _end_process(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self, seconds: int) -> str:
        """The line of the neighbour's process, "" without an answer."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(OSError):
            os.write(self._process.stdin.fileno(), b"\n")
            if select.select([self._process.stdout], [], [], seconds)[0]:
                return self._process.stdout.readline().decode()
        return ""

    def _state(self) -> dict[str, object]:
        pid = self._process.pid
        ready, *_ = select.select(self._services, [], [], 0)
        state: dict[str, object] = {f"file {path}": mark for path, mark in _files()}
        return {
            **state,
            "memory of the neighbour's process, or its life": self._answer(_ANSWER),
            "limits of the neighbour's process": _text(f"/proc/{pid}/limits"),
            "standing of the neighbour's process when memory is short": _text(f"/proc/{pid}/oom_score_adj"),
            "priority of the neighbour's process": _priority(pid),
            "cores of the neighbour's process": _cores(pid),
            "contents of System V's segment": ctypes.string_at(self._segment, 16) if self._segment else b"",
            "segment of System V, by its key": ctypes.CDLL(None).shmget(Neighbour.KEY, 0, 0) >= 0,
            "connections to local services": len(ready),
        }


def _files() -> Iterator[tuple[str, object]]:
    """The files that later runs may read, with size, mode, owner and the time of the last change of each."""
    package = Path(__file__).parents[2]
    for root in (
        package,
        Path(sysconfig.get_path("purelib")),
        Neighbour.FOLDER,
        Path.home(),
        Path("/dev/shm"),
        Path("/etc"),
    ):
        for folder, folders, names in os.walk(root, followlinks=root == package):
            folders[:] = folders if root == package else []  # of others, the first level
            for name in ("", *names):
                path = os.path.join(folder, name)
                with suppress(OSError):
                    status = os.lstat(path)
                    yield path, (status.st_mode, status.st_size, status.st_uid, status.st_mtime_ns)


def _shared_segment() -> int | None:
    """The address of a new segment of System V, None where there is none."""
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(Neighbour.KEY, _BYTES, _IPC_CREAT | _OWN_ALONE)
    address: int | None = libc.shmat(number, None, 0) if number >= 0 else None
    if address is not None:
        ctypes.memmove(address, Neighbour.SECRET[:16], 16)
    return address


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def _priority(pid: int) -> int | None:
    with suppress(OSError):
        return os.getpriority(os.PRIO_PROCESS, pid)
    return None


def _cores(pid: int) -> frozenset[int]:
    with suppress(OSError):
        return frozenset(os.sched_getaffinity(pid))
    return frozenset()
