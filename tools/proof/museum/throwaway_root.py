"""A throwaway root for destructive kernels: their changes to its files vanish with it, and no other file changes.

bubblewrap makes it, if installed, with the whole system read-only. Otherwise it is an overlay over the system's root,
in memory, in new mount and process namespaces. Either is tested with two harmless files before its use.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packproof.base.errors import PackproofError
from packproof.harness.process import import_path
from packproof.museum.rogues import MARK

_LIMIT = 60  # seconds for the test of a root
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("/proc", "/dev")  # each root gets new ones
_SIZE = "1g"  # memory for the files written in an overlay
_PROBE = 'rm -f "$1"; echo written > "$2"; test -w "$3/tmp" && test "$PWD" = "$3/run"'
_FOLDERS = (MARK, MARK / "run", MARK / "tmp")  # MARK / "run" is the working directory, MARK / "tmp" is for caches


class ThrowawayRootError(PackproofError):
    """No throwaway root can be made here; the text says why."""


MakePrefix = Callable[[Path], tuple[str, ...]]


@contextmanager
def throwaway_root(ways: "Mapping[str, MakePrefix] | None" = None) -> Iterator[tuple[str, ...]]:
    """The prefix of a command, to run it in a throwaway root with an empty working directory.

    ways: to make one, by name, in the order in which they are tried; all that there are by default.

    The command needs the variables of `environment`. Raises ThrowawayRootError.
    """
    if MARK.exists():
        raise ThrowawayRootError(f"no throwaway root can be made here: {MARK} exists already; remove it")
    with tempfile.TemporaryDirectory(prefix="packproof-") as folder:
        yield _first_working_prefix(Path(folder), WAYS if ways is None else ways)


def _first_working_prefix(folder: Path, ways: Mapping[str, MakePrefix]) -> tuple[str, ...]:
    reasons = []
    for name, make_prefix in ways.items():
        try:
            prefix = make_prefix(folder)
            _test_root(prefix, folder)
        except ThrowawayRootError as error:
            reasons.append(f"{name}: {error}")
        else:
            return prefix
    raise ThrowawayRootError(f"no throwaway root can be made here ({'; '.join(reasons)})")


def environment() -> dict[str, str]:
    """The environment of a command in a throwaway root: the same import path, with caches inside of the root."""
    folders = {name: str(MARK / "tmp") for name in ("TMPDIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR")}
    return {**os.environ, **folders, "PYTHONPATH": os.pathsep.join(import_path()), "CUDA_VISIBLE_DEVICES": ""}


def _test_root(prefix: tuple[str, ...], folder: Path) -> None:
    """Raise ThrowawayRootError unless changes stay inside: a file written inside is missing outside, and one deleted
    inside still exists outside."""
    canary, probe = folder / "canary", Path(f"/packproof-probe-{os.getpid()}")
    canary.touch()
    command = [*prefix, "sh", "-c", _PROBE, "sh", *map(str, (canary, probe, MARK))]
    try:
        process = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ThrowawayRootError(str(error)) from error
    if not canary.exists() or probe.exists():
        probe.unlink(missing_ok=True)
        raise ThrowawayRootError("what is done in it is done outside")
    if process.returncode != 0:
        raise ThrowawayRootError(" ".join(process.stderr.split()) or f"exit code {process.returncode}")


def _bubblewrap_prefix(_: Path) -> tuple[str, ...]:
    """The prefix that runs a command under bubblewrap: in its own root, with the whole file system read-only."""
    program = shutil.which("bwrap")
    if program is None:
        raise ThrowawayRootError("not installed")
    mounts = ["--tmpfs", "/", *(word for folder in _FOLDERS for word in ("--dir", str(folder)))]
    for entry in sorted(Path("/").iterdir()):
        if str(entry) in _SYSTEM or entry == MARK:
            continue
        if entry.is_symlink():
            mounts += ["--symlink", os.readlink(entry), str(entry)]
        else:
            mounts += ["--ro-bind", str(entry), str(entry)]
    mounts += ["--dev", "/dev", "--proc", "/proc", "--chdir", str(MARK / "run")]
    return (program, "--unshare-pid", "--unshare-ipc", *mounts, "--die-with-parent", "--")


def _overlay_prefix(folder: Path) -> tuple[str, ...]:
    """The prefix that runs a command in an overlay: `main` of this module, as the first process of new namespaces.

    folder: where the overlay is mounted.
    """
    if os.geteuid() != 0:  # in a user namespace the mounts below the root are locked, and no overlay hides them
        raise ThrowawayRootError("only root can mount one")
    if not all(map(shutil.which, ("unshare", "mount", "umount"))):
        raise ThrowawayRootError("util-linux is not installed")
    namespaces = ("--mount", "--pid", "--ipc", "--fork", "--kill-child")
    return ("unshare", *namespaces, "--", sys.executable, "-P", "-m", __name__, str(folder))


WAYS: Mapping[str, MakePrefix] = {"bubblewrap": _bubblewrap_prefix, "an overlay": _overlay_prefix}


@dataclass(frozen=True)
class _Mount:
    """A mounted file system."""

    path: str
    """Its mount point."""
    options: tuple[str, ...]
    """The options of the mount, such as "rw" and "nosuid"."""


def _mounts() -> list[_Mount]:
    """The mounts below the root, outermost first; of several at one mount point the last."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    fields = [line.split(" ") for line in lines]
    by_path = {
        _unescaped(columns[4]): _Mount(_unescaped(columns[4]), tuple(columns[5].split(","))) for columns in fields
    }
    return [by_path[path] for path in sorted(by_path) if path != "/" and not f"{path}/".startswith(_system_prefixes())]


def _system_prefixes() -> tuple[str, ...]:
    return tuple(f"{path}/" for path in _SYSTEM)


def _unescaped(text: str) -> str:
    """A path from mountinfo, with octal escapes decoded: a space is written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def _enter_throwaway_root(folder: str) -> None:
    """Build the root in a folder, and change into it. Only for a process in new namespaces."""
    mounts = _mounts()
    base, root = Path(folder), Path(folder) / "root"
    _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", base)
    for name in ("upper", "work", "root"):
        (base / name).mkdir()
    _mount("-t", "overlay", "-o", f"lowerdir=/,upperdir={base / 'upper'},workdir={base / 'work'}", "overlay", root)
    for mount in mounts:
        _mount_read_only(mount, root)
    _mount("-t", "proc", "proc", root / "proc")
    _make_devices(root / "dev")
    for path in _FOLDERS:
        (root / path.relative_to("/")).mkdir()
    os.chroot(root)
    os.chdir(MARK / "run")


def _mount_read_only(mount: _Mount, root: Path) -> None:
    """Mount a file system in the new root too, read-only. If it cannot be made read-only, leave it out."""
    target = root / mount.path.lstrip("/")
    options = ["ro" if option == "rw" else option for option in mount.options]
    if not target.exists() or not _try_mount("--bind", mount.path, target):
        return
    if not _try_mount("-o", ",".join(["remount", "bind", *options]), target):
        subprocess.run(["umount", target], check=True, stderr=subprocess.DEVNULL)


def _make_devices(folder: Path) -> None:
    _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", folder)
    for name in _DEVICES:
        (folder / name).touch()
        _mount("--bind", f"/dev/{name}", folder / name)
    (folder / "shm").mkdir(mode=0o1777)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _try_mount(*arguments: str | Path) -> bool:
    return subprocess.run(["mount", *arguments], check=False, stderr=subprocess.DEVNULL).returncode == 0


def main(folder: str, *command: str) -> int:
    """Run a command in a throwaway root, as the first process of new namespaces. Returns its exit code."""
    if os.getpid() != 1:
        print("this would mount over the root of the system: it runs in namespaces of its own", file=sys.stderr)
        return 1
    try:
        _enter_throwaway_root(folder)
    except subprocess.CalledProcessError:
        return 1  # `mount` has printed the reason
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
