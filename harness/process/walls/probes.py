"""Whether each wall holds, tried from inside a worker before the kernel is imported."""

import errno
import mmap
import os
import resource
import secrets
import socket
import stat
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from packproof.harness.process.walls.landlock import covers_files
from packproof.harness.process.walls.limits import max_memory, max_processes

_NAMESPACES = ("pid", "net", "ipc")
_CAP_DAC_READ_SEARCH = 2
_NO_ONE = ("192.0.2.1", 9)  # an address that no machine has (RFC 5737)


def judge_identity() -> dict[str, str | int]:
    """Of the process that judges, for `probe_walls`: its id and its namespaces."""
    return {"id": os.getpid(), **{name: _namespace(name) for name in _NAMESPACES}}


def _namespace(name: str) -> str:
    """Its identity; "" where the system has no such namespaces."""
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except FileNotFoundError:
        return ""


Judge = Mapping[str, str | int]


def cannot_write_files(_: Judge) -> bool:
    """No file of packproof, of installed packages or of the working directory can be made, written or truncated."""
    sources = (Path(__file__), Path(os.__file__))
    if not covers_files() and not _is_mounted_read_only(os.getcwd()):
        return False
    return not any(map(_can_write, sources)) and not any(map(_can_make_folder, _folders()))


def cannot_change_modes(_: Judge) -> bool:
    """The permissions of these files cannot be changed."""
    return not any(_can_change_mode(path) for path in (__file__, os.__file__, os.getcwd()))


def cannot_reach_devices(_: Judge) -> bool:
    """No disk can be opened."""
    return not any(_can_open(entry.path) for entry in os.scandir("/dev") if stat.S_ISBLK(_mode(entry)))


def is_alone(judge: Judge) -> bool:
    """Other processes are not seen, and all that the kernel starts ends with packproof's first process beside it."""
    return _namespace("pid") != judge["pid"] and os.readlink("/proc/self") == str(os.getpid())


def cannot_signal(judge: Judge) -> bool:
    """The process that judges cannot be ended or stopped."""
    return is_alone(judge) or not _works(lambda: os.kill(int(judge["id"]), 0))


def cannot_look_into_processes(judge: Judge) -> bool:
    """The memory of the process that judges cannot be read."""
    return is_alone(judge) or not _can_open(f"/proc/{judge['id']}/mem")


def has_no_network(judge: Judge) -> bool:
    """Nothing can be sent to another machine, nor to a service of this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:  # to connect it sends nothing
        return _namespace("net") != judge["net"] and not _works(lambda: sock.connect(_NO_ONE))


def shares_no_memory(judge: Judge) -> bool:
    """Memory and semaphores that other programs share are not seen."""
    return _namespace("ipc") != judge["ipc"]


def has_no_privileges(_: Judge) -> bool:
    """No right of root is left but to read files, and no program started from here gains one."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    capabilities = int(status["CapPrm"], 16) | int(status["CapBnd"], 16)
    return status["NoNewPrivs"] == "1" and not capabilities & ~(1 << _CAP_DAC_READ_SEARCH)


def cannot_start_many_processes(_: Judge) -> bool:
    """The number of processes is limited, and the limit applies to this user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if not 0 <= hard <= max_processes():
        return False
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    try:
        return not _can_fork()
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))


def cannot_take_all_memory(_: Judge) -> bool:
    """One process cannot have more memory than there is."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if not 0 <= limit <= max_memory():
        return False
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return not _works(lambda: mmap.mmap(-1, limit + mmap.PAGESIZE, flags=flags).close())


def _folders() -> Iterator[str]:
    yield str(Path(__file__).resolve().parent)
    yield sysconfig.get_path("purelib")
    yield os.getcwd()


def _is_mounted_read_only(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _works(action: Callable[[], object]) -> bool:
    try:
        action()
    except (OSError, OverflowError):
        return False
    return True


def _can_write(file: Path) -> bool:
    return _works(lambda: os.close(os.open(file, os.O_WRONLY | os.O_CLOEXEC)))


def _can_open(path: str) -> bool:
    return _works(lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)))


def _can_change_mode(path: str) -> bool:
    return _works(lambda: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)))  # to what it is


def _can_make_folder(parent: str) -> bool:
    folder = os.path.join(parent, f".packproof-probe-{secrets.token_hex(8)}")
    if not _works(lambda: os.mkdir(folder)):
        return False
    with suppress(OSError):
        os.rmdir(folder)
    return True


def _mode(entry: "os.DirEntry[str]") -> int:
    return entry.stat(follow_symlinks=False).st_mode


def _can_fork() -> bool:
    try:
        pid = os.fork()
    except OSError as error:
        return error.errno != errno.EAGAIN
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True
