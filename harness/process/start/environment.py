"""The environment of processes that run kernels: variables that Python and its libraries read only once, and limits."""

import os
import resource
import sys

ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1"
    ),
    "PYTHONHASHSEED": "0",
    "PYTHONOPTIMIZE": "",  # keep assertions: kernels and Triton check their arguments by them
}
_MIN_ADDRESS_SPACE = 3 << 28  # bytes of address space; torch and triton take two thirds of a GiB once imported


def is_fresh() -> bool:
    """Whether processes that run kernels can be forked from this one: it has the settings and has imported no torch."""
    return _has_environment() and "torch" not in sys.modules and not sys.flags.optimize


def restart_with_environment() -> None:
    """Replace this process by the same command with the settings of ENVIRONMENT. No effect if it has them or cannot."""
    # Python reads PYTHONHASHSEED, and torch the numbers of threads, only once. Without the restart no zygote could be
    # forked from this process, and a second process would have to import torch.
    if not (_has_environment() or sys.flags.ignore_environment) and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)


def _has_environment() -> bool:
    return not sys.flags.hash_randomization and ENVIRONMENT.items() <= os.environ.items()


def missing_resource() -> str:
    """Why the system cannot run the processes of kernels; "" if it can."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _MIN_ADDRESS_SPACE:
        limit_text = f"{limit / 2**20:.0f} MiB"
        needed = _MIN_ADDRESS_SPACE >> 20
        return f"a process may have {limit_text} of memory here, and torch takes {needed}: raise `ulimit -v`"
    if not os.path.isdir("/proc/self/task"):
        return "/proc is not mounted, where packproof finds the processes that kernels leave: mount -t proc proc /proc"
    return ""
