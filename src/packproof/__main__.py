"""The `packproof` command; `python -m packproof` is the same."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

WRONG_CALL, OWN_FAULT, INTERRUPTED = 2, 3, 130  # as in `tools/cli/ending`, which may be what cannot be imported
_RUN_KERNELS = ("check", "grade", "model", "peers", "replay")


def main() -> None:
    """Run the command line. A command that runs kernels restarts at once, so that they can run in forks of it.

    Its exit code does not depend on who reads its output, or in which encoding; ended by SIGTERM, it still writes its
    reports.
    """
    runs_kernels = sys.argv[1:2] and sys.argv[1] in _RUN_KERNELS and not {"-h", "--help", "--show"} & set(sys.argv)
    try:
        from packproof.harness.process import start  # noqa: PLC0415

        if reason := (start.missing_resource() if runs_kernels else "") or _displaced():
            _end(reason, WRONG_CALL)
        if runs_kernels:
            start.restart_with_environment()
        from packproof.cli import print_safely  # noqa: PLC0415

        print_safely()
        start.treat_sigterm_as_interrupt()
        start.restore_child_signal()
        command = None
        if runs_kernels and start.is_fresh():
            command = start.read_in_fork(sys.argv[1:], _run, meanwhile=start.fork_early_zygote)
        from packproof.cli import resume  # noqa: PLC0415  (a tenth of a second)
        from packproof.harness.process.start import exit_at_once  # noqa: PLC0415
    except KeyboardInterrupt:
        _end("interrupted", INTERRUPTED)
    except Exception as error:
        _end(_unimportable(error), OWN_FAULT)
    exit_at_once(resume(*command) if command else _run(sys.argv[1:]))


def _unimportable(error: Exception) -> str:
    """A message for what was raised before any command has begun: packproof, torch or one of the others that they need
    cannot be imported. Python itself would end with exit code 1, by which a property has failed."""
    import traceback  # noqa: PLC0415

    place = traceback.extract_tb(error.__traceback__)[-1]
    first = str(error).partition("\n")[0]
    return f"it cannot start: {type(error).__name__}: {first} ({place.filename}:{place.lineno})"


def _displaced() -> str:
    try:
        os.getcwd()
    except OSError as error:
        return f"the working directory cannot be found: {error.strerror}; change into one that exists"
    return ""


def _end(text: str, code: int) -> NoReturn:
    print(f"packproof: {text}", file=sys.stderr, flush=True)
    os._exit(code)  # a fork that reads the command line ends with it


def _run(arguments: Sequence[str]) -> int:
    try:
        from packproof.cli import run  # noqa: PLC0415
    except Exception as error:
        _end(_unimportable(error), OWN_FAULT)
    return run(arguments)


if __name__ == "__main__":
    main()
