"""A control group with little memory and few processes, for kernels that take all there is."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from packproof.base.errors import PackproofError

_ROOT = Path("/sys/fs/cgroup")
_SECONDS = 5  # until the processes that were in a group have left it


class NoControlGroupError(PackproofError):
    """No control group can be made here; the text says why."""


@dataclass(frozen=True)
class MemoryGroup:
    """A control group of each controller, below that of this process. With version 2 they are one."""

    memory: Path
    processes: Path

    def join(self) -> None:
        """Move this process into it: it and all that it starts."""
        for folder in {self.memory, self.processes}:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def members(self) -> list[int]:
        """The processes in it, without zombies; some seconds after their end at the latest."""
        end = time.monotonic() + _SECONDS
        while (pids := self._pids()) and time.monotonic() < end:
            time.sleep(0.1)
        return pids

    def _pids(self) -> list[int]:
        return [int(pid) for pid in (self.memory / "cgroup.procs").read_text().split() if not is_zombie(pid)]

    def kills(self) -> int:
        """How many of its processes the system has ended for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                counts = dict(line.split() for line in (self.memory / name).read_text().splitlines())
                return int(counts["oom_kill"])
        return 0


@contextmanager
def memory_group(n_bytes: int, n_processes: int) -> Iterator[MemoryGroup]:
    """A group without members. Raises NoControlGroupError."""
    limits = {"memory": ("memory.limit_in_bytes", "memory.max", n_bytes), "pids": ("pids.max", "pids.max", n_processes)}
    folders: dict[str, Path] = {}
    try:
        for controller, (old_name, name, limit) in limits.items():
            folders[controller] = folder = _own_folder(controller) / f"packproof-{os.getpid()}"
            folder.mkdir(exist_ok=True)
            file = next((folder / n for n in (name, old_name) if (folder / n).exists()), folder / name)
            file.write_text(str(limit))
        yield MemoryGroup(folders["memory"], folders["pids"])
    except OSError as error:
        raise NoControlGroupError(
            f"no control group can be made here: {error}; root can, or `systemd-run --scope -p Delegate=yes`"
        ) from error
    finally:
        for folder in set(folders.values()):
            with suppress(OSError):  # a process is left in it, which the caller has been told
                folder.rmdir()


def _own_folder(controller: str) -> Path:
    """The group of this process, of version 1 where that has the controller, else of version 2."""
    by_controllers: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        by_controllers |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    if controller in by_controllers:
        return _ROOT / controller / by_controllers[controller]
    unified = _ROOT / by_controllers.get("", "")
    with suppress(OSError):  # it may be enabled already
        (unified / "cgroup.subtree_control").write_text(f"+{controller}")
    return unified


def is_zombie(pid: str) -> bool:
    """Whether a process has ended, and no one has waited for it; or is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
