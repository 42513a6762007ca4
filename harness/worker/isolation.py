"""Namespaces for the processes that run kernels, with bubblewrap: no other process, no network, a read-only disk."""

import shutil
import subprocess

from packproof.refs.errors import UsageError

_SCRATCH = "/dev/shm"
_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc")
# --dev hides the system's devices, including GPUs
_MOUNTS = ("--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", _SCRATCH, "--proc", "/proc")
_ENVIRONMENT = ("--setenv", "TMPDIR", _SCRATCH, "--setenv", "TRITON_CACHE_DIR", f"{_SCRATCH}/triton")


def isolation_command() -> tuple[str, ...]:
    """The command prefix for isolation; it keeps descriptors open. Raises UsageError if it does not work here."""
    program = shutil.which("bwrap")
    if program is None:
        raise UsageError("--isolate: it needs bubblewrap, and there is no bwrap on PATH; install it, or check without")
    command = (program, *_NAMESPACES, *_MOUNTS, *_ENVIRONMENT, "--die-with-parent", "--")
    trial = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if trial.returncode != 0:
        raise UsageError(f"--isolate: bubblewrap does not work on this system: {trial.stderr.strip()}; check without")
    return command
