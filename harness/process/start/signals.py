"""Signals of the command, whatever its starter has made of them."""

import signal


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
