"""Submissions by the list: a file of JSON lines or a folder, each fixed by its digest before anything of it runs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.base.files import parse_json, read_bytes
from packproof.base.records import parse_record
from packproof.grading.many.job import GradeJob, GradeOptions, encoded
from packproof.grading.submission import FixedSubmission
from packproof.grading.tasks.task import terms_of_grade
from packproof.harness.process.naming import Location
from packproof.properties.contracts import ContractFile

_MOST_BYTES = 1 << 28  # of a list
_OWN = "packproof."  # each host has it
_WRITER = "JSON lines, each an object with `submission`"


@dataclass(frozen=True)
class ListedSubmission:
    """A line of a list."""

    submission: str
    """path/file.py:function or package.module:function, from the current folder."""
    name: str = ""
    """Its name in the results; by default `submission`."""
    contract: str | None = None
    """The path of its contract; the one of the call if it has neither contract nor task."""
    task: str | None = None


@dataclass(frozen=True)
class GradeEntry:
    """A submission with its terms, both fixed."""

    name: str
    submission: FixedSubmission
    terms: ContractFile
    task: str | None
    """The name of the task, if the terms are those of one."""

    def job(self, options: GradeOptions, cores: int) -> GradeJob:
        """Its grade, with the files that it needs. Raises UsageError if one cannot be read any more."""
        paths = set() if self.submission.target.startswith(_OWN) else set(_paths_inside(self.submission.files))
        terms = ["--task", self.task] if self.task else ["--contract", self.terms.path]
        if not self.task:
            paths.add(Path(self.terms.path))
            paths.update(filter(None, [self._op_file]))
        files = {path.as_posix(): encoded(_bytes(path)) for path in sorted(paths)}
        return GradeJob(self.submission.target, (*terms, *options.arguments), files, cores)

    @property
    def _op_file(self) -> Path | None:
        """The file of an op of the caller's own, beside the contract."""
        source = self.terms.contract.op.rpartition(":")[0]
        return Path(source) if self.terms.op_digest else None


def read_list(source: str) -> Sequence[ListedSubmission]:
    """The submissions of FILE.jsonl, or of FOLDER:function, one in each file of Python there. Raises UsageError."""
    folder, _, function = source.rpartition(":")
    if folder and Path(folder).is_dir():
        files = sorted(Path(folder).glob("*.py"))
        if not files:
            raise UsageError(f"submissions: {folder} has no file of Python, such as {folder}/0001.py")
        return [ListedSubmission(f"{file}:{function}") for file in files]
    try:
        lines = read_bytes(Path(source), _MOST_BYTES).split(b"\n")
    except OSError as error:
        raise UsageError(
            f"submissions: {source}: {error.strerror or error}; expected a file of JSON lines, or FOLDER:function"
        ) from None
    return [_parse_line(line, f"{source} line {n}") for n, line in enumerate(lines, 1) if line.strip()]


def _parse_line(line: bytes, label: str) -> ListedSubmission:
    return parse_record(ListedSubmission, parse_json(line, label, _WRITER), label, _WRITER)


def fixed_entries(
    submissions: Iterable[ListedSubmission], contract: str | None, task: str | None
) -> Sequence[GradeEntry]:
    """All of them, read and fixed. Raises UsageError for the first one that cannot be graded, and equal names.

    contract: the path of the contract of each one that has no terms of its own.
    task: or the name of a task.
    """
    entries, terms_of = [], cache(_terms)
    for line in submissions:
        own_terms = line.contract is not None or line.task is not None
        terms = (line.contract, line.task) if own_terms else (contract, task)
        try:
            entries.append(_entry(line, terms_of(*terms), *terms))
        except UsageError as error:
            raise UsageError(f"{line.name or line.submission}: {error}") from None
    name, count = next(iter(Counter(entry.name for entry in entries).most_common(1)), ("", 0))
    if count != 1:
        raise UsageError(f"submissions: {count} are called {json.dumps(name)}; each needs a `name` of its own")
    return entries


def _entry(line: ListedSubmission, file: ContractFile, contract: str | None, task: str | None) -> GradeEntry:
    source = line.submission.rpartition(":")[0] if Location.parse(line.submission).file else None
    for path in filter(None, [source, contract]):
        _require_inside(Path(path))
    return GradeEntry(line.name or line.submission, FixedSubmission.read(line.submission), file, task)


def _terms(contract: str | None, task: str | None) -> ContractFile:
    return terms_of_grade(ContractFile.read(contract) if contract else None, task)


def _require_inside(path: Path) -> None:
    """Raise UsageError for a path that cannot be made in the folder of a grade, on whatever host."""
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(f"{path} is no path below the current folder; start there, so that it is one on each host")


def _paths_inside(files: Iterable[Path]) -> Iterator[Path]:
    """Those below the current folder, relative to it; each host has the others, which are installed."""
    folder = Path.cwd()
    for file in files:
        path = file if file.is_absolute() else folder / file
        if path.is_relative_to(folder):
            yield path.relative_to(folder)


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"submission: {path}: {error.strerror or error}") from None
