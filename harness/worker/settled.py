"""How the processes that run kernels are started: with settings that Python and its libraries read only once, and with
no Ctrl-C lost meanwhile."""

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1"
    ),
    "PYTHONHASHSEED": "0",
    "PYTHONOPTIMIZE": "",  # without assertions a kernel's checks of its arguments, and Triton's own, do nothing
}
_LEAST = 3 << 28  # bytes of address space: torch and triton, once imported, take two thirds of a GiB
_FRAME = 100_000  # words, never touched; of the chunk of 1 MiB that Python makes for them some 30,000 are left


def is_fresh() -> bool:
    """Whether processes that run kernels can be forks of this one: it was started so, and has done nothing yet."""
    return _is_settled() and "torch" not in sys.modules and not sys.flags.optimize


def lacking() -> str:
    """What the system does not give here and processes that run kernels need, "" where it gives all of it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST:
        most = f"{limit / 2**20:.0f} MiB"
        return f"a process may have {most} of memory here, and torch takes {_LEAST >> 20}: raise `ulimit -v`"
    if not os.path.isdir("/proc/self/task"):
        return "/proc is not mounted, where packproof finds the processes that kernels leave: mount -t proc proc /proc"
    return ""


def restart_settled() -> None:
    """Become the same command, started so. Does nothing where that is so already, or cannot be."""
    if not (_is_settled() or sys.flags.ignore_environment) and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)


def _is_settled() -> bool:
    return not sys.flags.hash_randomization and ENVIRONMENT.items() <= os.environ.items()


@contextmanager
def importing() -> Iterator[None]:
    """Import without collecting garbage, which costs a sixth of the time; what was made is left out of it for good.

    torch keeps the file and line of each operator that it registers. That a file is a module's makes no difference to
    its lines, and to find the module Python resolves the paths of all others.
    """
    import inspect  # noqa: PLC0415  (a restart does not wait for it)

    was_on, whole = gc.isenabled(), inspect.getmodule
    gc.disable()
    inspect.getmodule = lambda item, _filename=None: None if _filename else whole(item)  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getmodule = whole
        gc.freeze()
        if was_on:
            gc.enable()


def in_one_chunk(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, in a frame so large that the frames of what it calls lie in the same chunk of memory. Chunks
    of 16 KiB, as Python (3.11 and later) has them, are mapped and unmapped again at each call across their border.
    """
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_stacksize=_FRAME)
    return function


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


def wait_for_children() -> None:
    """Let this process learn how its children end: the program that started it may have let them be forgotten."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def take_signals_as_a_fork() -> None:
    """In a process that has been forked: Ctrl-C is for its parent, SIGTERM ends it as usual, and what the parent does
    when a child ends is about other children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
