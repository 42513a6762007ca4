"""How the processes that run kernels are started: with settings that Python and its libraries read only once, and with
no Ctrl-C lost meanwhile."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1"
    ),
    "PYTHONHASHSEED": "0",
}


def is_fresh() -> bool:
    """Whether processes that run kernels can be forks of this one: it was started so, and has done nothing yet."""
    return _is_settled() and "torch" not in sys.modules


def restart_settled() -> None:
    """Become the same command, started so. Does nothing where that is so already, or cannot be."""
    if not (_is_settled() or sys.flags.ignore_environment) and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)


def _is_settled() -> bool:
    return not sys.flags.hash_randomization and ENVIRONMENT.items() <= os.environ.items()


@contextmanager
def importing() -> Iterator[None]:
    """Import without collecting garbage, which costs a sixth of the time; what was made is left out of it for good."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C is raised at the end of the block, not inside it: Python prints and forgets what is raised in a hook of
    `os.fork`, and a fork of a large process takes long. A process that is forked inside never gets it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_as_by_ctrl_c() -> None:
    """Let SIGTERM, by which CI and schedulers end a job, do what Ctrl-C does: a run reports what it has found."""

    def press(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it twice
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in a shell's background
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, press)


def leave_ctrl_c_to_the_parent() -> None:
    """Ignore it in a process that has been forked, which SIGTERM ends as usual."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
