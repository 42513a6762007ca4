"""The `packproof` command; `python -m packproof` is the same."""

import sys
from collections.abc import Sequence

_RUN_KERNELS = ("check", "peers", "replay")


def main() -> None:
    """Run the command line. A command that runs kernels restarts at once, so that they can run in forks of it.

    Its exit code does not depend on who reads its output, or in which encoding; ended by SIGTERM, it still writes its
    reports.
    """
    runs_kernels = sys.argv[1:2] and sys.argv[1] in _RUN_KERNELS and not {"--help", "--show"} & set(sys.argv)
    try:
        from packproof.harness.worker.settled import end_as_by_ctrl_c, is_fresh, restart_settled  # noqa: PLC0415

        if runs_kernels:
            restart_settled()
        from packproof.harness.cli.printing import print_safely  # noqa: PLC0415

        print_safely()
        end_as_by_ctrl_c()
        command = None
        if runs_kernels and is_fresh():
            from packproof.harness.cli.beside import read_beside  # noqa: PLC0415

            command = read_beside(sys.argv[1:], _run)
        from packproof.harness.cli.main import leave, resume  # noqa: PLC0415  (a tenth of a second)
    except KeyboardInterrupt:
        print("packproof: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    leave(resume(*command) if command else _run(sys.argv[1:]))


def _run(arguments: Sequence[str]) -> int:
    from packproof.harness.cli.main import run  # noqa: PLC0415

    return run(arguments)


if __name__ == "__main__":
    main()
