"""The results of many grades: a file of JSON lines, each written whole and once, which a later run can continue."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from packproof.base.errors import UsageError
from packproof.base.files import damaged_error, replace_text, writable_path
from packproof.grading.many.listing import GradeEntry

Row = dict[str, Any]

JUDGED = ("passed", "failed")
_WRITER = "packproof grades"


class Results:
    """The file of a run. No other run can have it at the same time.

    file: its path; None keeps nothing.
    resume: whether it may have rows.

    Raises UsageError if it cannot be written, has rows without `resume`, or is damaged.
    """

    def __init__(self, file: str | None, *, resume: bool) -> None:
        self.rows: Sequence[Row] = []
        """Those of the runs before."""
        self._path = writable_path(file, "--results") if file else None
        self._streams: list[BinaryIO] = []
        if self._path is None:
            return
        if not resume and self._path.exists() and self._path.stat().st_size:
            raise UsageError(f"--results: {file} exists; --resume continues it")
        self._open(self._path)
        self.rows = list(_rows(self._path))

    def keep_grades(self, entries: Mapping[str, GradeEntry], secret: str) -> set[str]:
        """Drop the rows that this run makes again, and the names of those that it need not make.

        Again: those that were not judged, and those of another submission, contract or secret with the same name.
        """
        kept = [row for row in self.rows if row["name"] not in entries or _is_grade(row, entries[row["name"]], secret)]
        if self._path and len(kept) < len(self.rows):
            replace_text(self._path, "".join(map(_line, kept)))
            self._open(self._path)
        self.rows = kept
        return {row["name"] for row in kept} & entries.keys()

    def add(self, row: Row) -> None:
        """Write a row, whole, to the disk."""
        if self._streams:
            stream = self._streams[-1]
            stream.write(_line(row).encode())
            stream.flush()
            os.fsync(stream.fileno())

    def close(self) -> None:
        """Let other runs have it."""
        for stream in self._streams:
            stream.close()

    def _open(self, path: Path) -> None:
        stream = path.open("ab")
        self._streams.append(stream)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--results: {path} is being written by another run") from None


def _rows(path: Path) -> Iterator[Row]:
    """The rows of a file. What a run that was killed wrote of its last line is cut off."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            row = json.loads(line)
            str(row["name"]), row["secret"], str(row["grade"]["verdict"] if "grade" in row else row["error"])
        except (ValueError, TypeError, KeyError) as error:
            raise damaged_error(path, f"line {number}: {error!r}", _WRITER) from None
        yield row


def _is_grade(row: Row, entry: GradeEntry, secret: str) -> bool:
    """Whether it is judged, for this submission, contract and secret: the seed follows from all three."""
    grade = row.get("grade", {"verdict": "", "seed": None})
    return grade["verdict"] in JUDGED and grade["seed"] == entry.submission.seed(secret, entry.terms.digest)


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
