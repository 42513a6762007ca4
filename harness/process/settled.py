"""How processes that run kernels are started: settings that Python and its libraries read only once, and signals."""

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
    "PYTHONOPTIMIZE": "",  # keep assertions: kernels and Triton check their arguments by them
}
_MIN_ADDRESS_SPACE = 3 << 28  # bytes of address space; torch and triton take two thirds of a GiB once imported
_FRAME_WORDS = 100_000  # words, never touched: Python makes a chunk of 1 MiB for them, with some 30,000 words to spare


def is_fresh() -> bool:
    """Whether processes that run kernels can be forked from this one: it has the settings and has imported no torch."""
    return _has_environment() and "torch" not in sys.modules and not sys.flags.optimize


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


def restart_with_environment() -> None:
    """Replace this process by the same command with the settings of ENVIRONMENT. No effect if it has them or cannot."""
    if not (_has_environment() or sys.flags.ignore_environment) and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ENVIRONMENT)


def _has_environment() -> bool:
    return not sys.flags.hash_randomization and ENVIRONMENT.items() <= os.environ.items()


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import without garbage collection, a sixth faster. Objects created until then are never collected.

    torch records the file and line of each operator that it registers. For this Python looks up the file's module, and
    resolves the paths of all modules to find it. The lines do not depend on the module, so the look-up is skipped.
    """
    import inspect  # noqa: PLC0415  (not needed before a restart)

    gc_was_enabled, original_getmodule = gc.isenabled(), inspect.getmodule
    gc.disable()
    inspect.getmodule = lambda item, _filename=None: None if _filename else original_getmodule(item)  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getmodule = original_getmodule
        gc.freeze()
        if gc_was_enabled:
            gc.enable()


def with_large_frame(function: Callable[P, R]) -> Callable[P, R]:
    """The same function with a frame so large that the frames of all its callees share one chunk of memory.

    Python 3.11 and later allocate frames in chunks of 16 KiB. Each call across a border maps a chunk, and its return
    unmaps it.
    """
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_stacksize=_FRAME_WORDS)
    return function


def treat_sigterm_as_interrupt() -> None:
    """Let SIGTERM act like Ctrl-C. CI and schedulers end jobs by it, and the run then still reports its results."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it twice
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)


def restore_child_signal() -> None:
    """Let this process see how its children end: its starter may have set SIGCHLD to be ignored."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
