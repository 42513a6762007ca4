"""Printing without errors: a closed pipe, a full disk or a narrow encoding never changes the exit code."""

import io
import os
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO


def print_safely() -> None:
    """Make printing safe in this process.

    Output that cannot be written is dropped, with one message. Characters outside the encoding are escaped.
    """
    for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # closed: no other file may take its descriptor
            _open_null(descriptor)
    sys.stdout = _stream(1, sys.stdout)
    sys.stderr = _stream(2, sys.stderr)


def section(name: str, rows: Mapping[str, str]) -> None:
    """Print a title, and below it rows of a name and a text."""
    width = max(map(len, rows)) + 2
    print(name)
    for key, text in rows.items():
        print(f"  {key:<{width}}{text}".rstrip())


def _open_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)


def _stream(descriptor: int, previous: TextIO | None) -> io.TextIOWrapper:
    if previous is not None:
        with suppress(OSError):
            previous.flush()
    raw = io.BufferedWriter(_Output(descriptor))
    return io.TextIOWrapper(
        raw,
        encoding=previous.encoding if previous is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == 2 or os.isatty(descriptor),
    )


class _Output(io.FileIO):
    """A descriptor for output. It accepts everything, even if the reader is gone or the disk is full."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost = False

    def write(self, data: Any) -> int:
        try:
            while (count := super().write(data)) is None:  # full and non-blocking
                select.select([], [self], [])
        except OSError as error:
            if not (self._lost or isinstance(error, BrokenPipeError) or self.fileno() == 2):
                print(f"packproof: some of this output could not be printed: {error.strerror}", file=sys.stderr)
            self._lost = True
            return len(memoryview(data).cast("B"))
        return count
