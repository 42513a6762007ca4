"""The `packproof` command; `python -m packproof` is the same."""

import sys

_RUN_KERNELS = ("check", "peers", "replay")


def main() -> None:
    """Run the command line; one that runs kernels restarts at once, so that they can run in forks of this process."""
    try:
        if sys.argv[1:2] and sys.argv[1] in _RUN_KERNELS and not {"--help", "--show"} & set(sys.argv):
            from packproof.harness.worker.settled import restart_settled  # noqa: PLC0415

            restart_settled()
        from packproof.harness.cli.main import main as run  # noqa: PLC0415  (a tenth of a second)
    except KeyboardInterrupt:
        print("packproof: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
