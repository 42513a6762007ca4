"""The walls between a kernel and the machine, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packproof.base.errors import MissingWallError
from packproof.harness.process.walls import probes


@dataclass(frozen=True)
class Wall:
    """A wall between a kernel and the machine."""

    name: str
    """As reports have it."""
    prevents: str
    """What a kernel cannot do where it stands."""
    means: str
    """How it is put up; several of them stand one after the other."""
    holds: Callable[[probes.Judge], bool]
    """Tries it, from inside a worker. Its argument is the `judge_identity`."""


WALLS = (
    Wall(
        "files",
        "write, truncate or delete files of the caller, of packproof or of installed packages",
        "read-only mounts, landlock, another user in place of root",
        probes.cannot_write_files,
    ),
    Wall(
        "modes",
        "change permissions and times of these files",
        "read-only mounts, another user in place of root",
        probes.cannot_change_modes,
    ),
    Wall("devices", "open disks", "a /dev of its own", probes.cannot_reach_devices),
    Wall(
        "processes",
        "see other processes, change their limits, or leave one that outlives the check",
        "a namespace of processes",
        probes.is_alone,
    ),
    Wall(
        "signals",
        "end or stop packproof's processes",
        "a namespace of processes, landlock, another user in place of root",
        probes.cannot_signal,
    ),
    Wall(
        "memory of others",
        "read or write the memory of packproof's processes",
        "a namespace of processes, concealment",
        probes.cannot_look_into_processes,
    ),
    Wall("network", "reach other machines or local services", "a namespace of networks", probes.has_no_network),
    Wall("shared memory", "reach the shared memory of other programs", "a namespace of IPC", probes.shares_no_memory),
    Wall(
        "privileges",
        "use the rights of root, other than to read, or gain some by a program",
        "dropped capabilities, no_new_privs",
        probes.has_no_privileges,
    ),
    Wall(
        "process limit",
        "start processes without end",
        "RLIMIT_NPROC, with another user in place of root",
        probes.cannot_start_many_processes,
    ),
    Wall("memory limit", "take more memory than there is", "RLIMIT_DATA", probes.cannot_take_all_memory),
)


def probe_walls(judge: probes.Judge) -> dict[str, bool]:
    """Whether each wall holds around this process, by its name."""
    return {wall.name: _holds(wall, judge) for wall in WALLS}


def _holds(wall: Wall, judge: probes.Judge) -> bool:
    try:
        return wall.holds(judge)
    except OSError:
        return False  # it could not be tried


def require_walls(states: Mapping[str, bool]) -> None:
    """Raises MissingWallError if one of them does not hold."""
    missing = [wall for wall in WALLS if not states.get(wall.name, False)]
    if missing:
        text = "; ".join(f"{wall.name} ({wall.means})" for wall in missing)
        raise MissingWallError(
            f"--isolate: this system does not put up: {text}; check without, or in a virtual machine"
        )
