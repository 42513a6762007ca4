"""What encloses the processes of kernels, put up in three steps: by the keeper, by the zygote, and in each worker."""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from packproof.harness.process.execution.fork import Fork, start_fork
from packproof.harness.process.privilege import OTHER_USER, confine, give_up_rights, gives_up_user
from packproof.harness.process.walls.devices import device_files
from packproof.harness.process.walls.isolation import Isolation
from packproof.harness.process.walls.landlock import restrict_writing
from packproof.harness.process.walls.limits import limit_resources
from packproof.harness.process.walls.namespaces import (
    PRIVATE,
    build_view,
    enter_process_namespace,
    namespaces_work,
    take_private_folder,
)

_CACHES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE",
    "XDG_CACHE_HOME",
)
_DOWNLOADS = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}  # weights and configurations: these may be read


@dataclass(frozen=True)
class Enclosure:
    """The walls around the processes that one keeper has started."""

    isolation: Isolation
    has_namespaces: bool
    folder: str
    """Where kernels may write: a file system of their own, or a temporary folder."""

    @classmethod
    def begin(cls, isolation: Isolation) -> "Enclosure":
        """In the keeper. Its next fork has to call `build`."""
        if isolation == "none":
            return cls(isolation, has_namespaces=False, folder="")
        if namespaces_work():
            enter_process_namespace()
            return cls(isolation, has_namespaces=True, folder=PRIVATE)
        return cls(isolation, has_namespaces=False, folder=tempfile.mkdtemp(prefix="packproof-"))

    def build(self) -> None:
        """In the first fork of the keeper, from which workers are forked."""
        if self.has_namespaces:
            build_view()
            _write_below(PRIVATE)  # Inductor makes its cache when it is imported

    def enter(self, name: str) -> None:
        """In a worker. What it starts cannot leave.

        name: workers of the same name share the folder in which they write.
        """
        if self.isolation == "none":
            confine()
            return
        folder_name = sha256(name.encode()).hexdigest()[:16]
        limit_resources()
        if self.has_namespaces:
            take_private_folder(folder_name)
            folder = PRIVATE
        else:
            folder = os.path.join(self.folder, folder_name)
            os.makedirs(folder, exist_ok=True)
            if gives_up_user():
                os.chmod(self.folder, 0o711)
                os.chown(folder, OTHER_USER, OTHER_USER)
        give_up_rights()
        with suppress(OSError):  # the system has none, which the probes report
            restrict_writing(folder, [*device_files(), self._process_files])
        _write_below(folder)

    @property
    def _process_files(self) -> str:
        """Where CUDA's driver names the threads of a process. In a namespace all processes are the kernel's own."""
        return "/proc" if self.has_namespaces else "/proc/self/task"

    def end(self) -> None:
        """In the keeper, once all processes have ended."""
        if self.folder and not self.has_namespaces:
            shutil.rmtree(self.folder, ignore_errors=True)


NO_MORE_WALLS = Enclosure("none", has_namespaces=False, folder="")
"""For processes within the walls of the process that they are forked from."""


def _write_below(folder: str) -> None:
    """Let libraries write their files there: temporary ones, caches of compilers, and those of the user's home."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for name, place in _DOWNLOADS.items():
        os.environ.setdefault(name, f"{user_cache}/{place}")
    os.environ.update({"TMPDIR": folder, "HOME": folder, **{name: f"{folder}/{name.lower()}" for name in _CACHES}})
    tempfile.tempdir = None


def start_enclosed_fork(function: Callable[[], int | None], isolation: Isolation, name: str = "") -> Fork:
    """Run a function within the walls, in a fork of this process; whatever it leaves running ends with it.

    name: see `Enclosure.enter`.

    The fork returned is the keeper's. It has the exit code of the function; to kill it ends all.
    """

    def keep() -> int:
        enclosure = Enclosure.begin(isolation)

        def build() -> int:
            enclosure.build()
            return _exit_code(start_fork(enter))

        def enter() -> int:
            enclosure.enter(name)
            return function() or 0

        code = _exit_code(start_fork(build))
        enclosure.end()
        return code

    return start_fork(keep)


def _exit_code(fork: Fork) -> int:
    code = fork.wait()
    return 1 if code is None else code if code >= 0 else 128 - code
