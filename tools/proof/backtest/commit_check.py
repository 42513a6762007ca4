"""The check of one commit, and its failing cases again at another."""

import re
import shlex
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from packproof.base.files import read_json
from packproof.proof.backtest.commit_process import ExportedCommit, exported_commit
from packproof.proof.backtest.entries import CheckCall, Checkout

_MARGIN = 60  # seconds that a check may take beyond its time, to shrink failures and to write its report
_REPLAY_FOLDER = ".packproof"
_TAIL = 4000  # characters of the output that are kept
_MESSAGE = 400  # characters of a failure that are kept
_IMPORT_ERROR = re.compile(r"\b(ImportError|ModuleNotFoundError)\b")
_PACKS_CHECK = "packproof packs check"
_NO_CASE = -1
_PLACE = re.compile(r"^\(\S+:\d+\)")


@dataclass(frozen=True)
class FailedCell:
    """A property that failed, in one dtype."""

    law: str
    """The property."""
    dtype: str
    tensor: str
    """The tensor of the smallest failure, "" for none."""
    lengths: tuple[int, ...]
    """The smallest layout."""
    message: str
    """The first lines of the report, after its title."""
    fault: str = ""
    """The exception or the memory fault that ended the call, without numbers; "" if it returned."""
    replay: str = ""
    """The name of its replay file, "" if it has none."""
    again: tuple[str, ...] = ()
    """The options by which `packproof packs check` is asked about its documents alone; () if it has a replay file."""


@dataclass(frozen=True)
class CommitCheck:
    """What packproof says of one commit."""

    commit: str
    exit_code: int
    """Of packproof; -1 for a run that was ended for its time."""
    seconds: float
    failed: tuple[FailedCell, ...]
    judged: int
    """The cells that passed."""
    text: str
    """The end of what was printed, where nothing failed: it says what was not judged, and why."""
    held: tuple[str, ...] = ()
    """The property of each cell that passed."""

    @property
    def was_asked(self) -> bool:
        """Whether the kernel was called at all."""
        could_not_import = self.failed and all(_IMPORT_ERROR.search(cell.message) for cell in self.failed)
        return bool((self.failed and not could_not_import) or self.judged)


@dataclass(frozen=True)
class Asked:
    """A question about the commits of one project."""

    git_directory: Path
    checkout: Checkout
    question: CheckCall
    device: str
    """cpu or cuda."""
    seconds: float
    """For one run of packproof."""
    properties: tuple[str, ...] = ()
    """Those that are asked of a kernel; () for all of the profile."""

    def run(self, files: ExportedCommit, *arguments: str, margin: float = 0.0) -> tuple[int, str]:
        """The exit code and the output of packproof at a commit."""
        interpreted = self.device == "cpu" and self.question.command == "model"
        return files.run(*arguments, seconds=self.seconds + margin, interpreted=interpreted)


def check_commit(asked: Asked, commit: str, replay_files: Path) -> CommitCheck:
    """Check the kernel of a commit.

    replay_files: the folder to be made for the replay files of its failures.
    """
    start = time.monotonic()
    replay_files.mkdir()
    with exported_commit(asked.git_directory, commit, asked.checkout) as files:
        report = files.scratch / "report.json"
        arguments = _arguments(asked, report)
        exit_code, output = asked.run(files, *arguments, margin=_MARGIN)
        failed, held = read_report(report)
        here = f"{files.scratch}/"  # differs from run to run
        failed = tuple(replace(cell, message=cell.message.replace(here, "")) for cell in failed)
        for cell in failed:
            if cell.replay:
                shutil.copy(files.work / _REPLAY_FOLDER / cell.replay, replay_files)
    check = CommitCheck(commit, exit_code, round(time.monotonic() - start, 1), failed, len(held), "", held)
    if not failed:
        return replace(check, text=output.replace(here, "")[-_TAIL:])
    return check if check.was_asked else replace(check, text=failed[0].message)


def replay_case(asked: Asked, replay_files: Path, commit: str, cell: FailedCell) -> int:
    """The exit code of packproof at a commit, at the case of a failure alone; `_NO_CASE` if none was kept."""
    with exported_commit(asked.git_directory, commit, asked.checkout) as files:
        if cell.replay:
            return asked.run(files, "replay", str(replay_files / cell.replay))[0]
        if not cell.again:
            return _NO_CASE
        question = _arguments(asked, files.scratch / "report.json")
        return asked.run(files, *question, *cell.again, "--property", cell.law)[0]


def _arguments(asked: Asked, report: Path) -> list[str]:
    question = asked.question
    options = ["--profile", question.profile, "--json", str(report)]
    if question.command != "packs check":
        options += ["--device", asked.device]
    if question.command == "check":
        options += ["--max-time", f"{asked.seconds:.0f}s"]
        for name in asked.properties:
            options += ["--property", name]
    if question.op:
        options += ["--op", question.op]
    if question.dtypes:
        options += ["--dtype", ",".join(question.dtypes)]
    for condition in question.domain:
        options += ["--domain", condition]
    return [*question.command.split(), question.target, *options, *question.options]


def read_report(report: Path) -> tuple[tuple[FailedCell, ...], tuple[str, ...]]:
    """What failed, and the properties that passed; nothing if there is no report."""
    if not report.exists():
        return (), ()
    results = read_json(report, "the report", "packproof check")["results"]
    failed = tuple(
        FailedCell(
            r["property"],
            r["dtype"],
            r.get("tensor") or "",
            tuple(r.get("lengths") or ()),
            _without_title(str(r.get("message", ""))),
            "" if r.get("tensor") else _PLACE.sub("", str(r.get("cause", ""))).strip(),
            Path(r.get("replay") or "").name,
            _documents_again(str(r.get("message", ""))),
        )
        for r in results
        if r["status"] == "failed"
    )
    return failed, tuple(r["property"] for r in results if r["status"] == "passed")


def _documents_again(message: str) -> tuple[str, ...]:
    """The options of the report's last line, that of a packer's documents; () if it has none."""
    line = next((line.strip() for line in message.splitlines() if line.strip().startswith(_PACKS_CHECK)), "")
    return tuple(shlex.split(line)[len(_PACKS_CHECK.split()) + 1 :])  # its target stands in the question


def _without_title(message: str) -> str:
    """The lines of a report that say what is off: its title, layout and sizes stand elsewhere."""
    lines = [line.strip() for line in message.splitlines()[3:] if "packproof replay" not in line]
    return " ".join(filter(None, lines))[:_MESSAGE]
