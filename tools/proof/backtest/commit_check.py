"""The check of one commit: packproof in a process and an environment of its own."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from packproof.base.files import read_json
from packproof.proof.backtest.commits import export
from packproof.proof.backtest.entries import CheckCall, Checkout

_MARGIN = 60  # seconds that a check may take beyond its time, to shrink failures and to write its report
_TAIL = 1500  # characters of the output that are kept
_MESSAGE = 400  # characters of a failure that are kept
_IMPORT_ERROR = re.compile(r"\b(ImportError|ModuleNotFoundError)\b")


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

    @property
    def key(self) -> tuple[str, str]:
        """What it has in common with failures of the other commit."""
        return self.law, self.tensor


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
    """The end of what was printed, where nothing was judged."""

    @property
    def was_asked(self) -> bool:
        """Whether the kernel was called at all."""
        could_not_import = self.failed and all(_IMPORT_ERROR.search(cell.message) for cell in self.failed)
        return bool((self.failed and not could_not_import) or self.judged)


def check_commit(
    git_directory: Path, commit: str, checkout: Checkout, question: CheckCall, *, seconds: float, device: str
) -> CommitCheck:
    """Check the kernel of a commit. No file or environment of another commit reaches it.

    seconds: for the whole check.
    device: cpu or cuda.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="packproof-backtest-") as scratch:
        root = export(git_directory, commit, checkout, Path(scratch) / "files")
        report = Path(scratch) / "report.json"
        command = _command(question, device, seconds, report)
        environment = _environment(root, Path(scratch), interpreted=device == "cpu" and question.command == "model")
        exit_code, output = _run(command, environment, Path(scratch), seconds + _MARGIN)
        failed, judged = _read_report(report)
    trial = CommitCheck(commit, exit_code, round(time.monotonic() - start, 1), failed, judged, "")
    if trial.was_asked:
        return trial
    return replace(trial, text=failed[0].message if failed else output[-_TAIL:])


def _command(question: CheckCall, device: str, seconds: float, report: Path) -> list[str]:
    options = ["--profile", question.profile, "--json", str(report)]
    if question.command != "packs check":
        options += ["--device", device]
    if question.command == "check":
        options += ["--max-time", f"{seconds:.0f}s"]
    if question.op:
        options += ["--op", question.op]
    if question.dtypes:
        options += ["--dtype", ",".join(question.dtypes)]
    for condition in question.domain:
        options += ["--domain", condition]
    command = [sys.executable, "-m", "packproof", *question.command.split()]
    return [*command, question.target, *options, *question.options]


def _environment(root: Path, scratch: Path, *, interpreted: bool) -> dict[str, str]:
    """The commit's packages first; caches of compiled kernels are its own.

    interpreted: whether kernels inside of a module run in Triton's interpreter; those that are checked do so anyway.
    """
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if interpreted else {})}
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        environment[name] = str(scratch / name.lower())
    search_path = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    absolute = [str(Path(p).absolute()) for p in search_path]
    return {**environment, "PYTHONPATH": os.pathsep.join(absolute), "PYTHONDONTWRITEBYTECODE": "1"}


def _run(command: list[str], environment: dict[str, str], folder: Path, seconds: float) -> tuple[int, str]:
    """The exit code and the output. All its processes end with it."""
    work = folder / "work"
    work.mkdir()
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return -1, output
    return process.returncode, output


def _read_report(report: Path) -> tuple[tuple[FailedCell, ...], int]:
    if not report.exists():
        return (), 0
    results = read_json(report, "the report", "packproof check")["results"]
    failed = tuple(
        FailedCell(
            r["property"],
            r["dtype"],
            r.get("tensor") or "",
            tuple(r.get("lengths") or ()),
            _without_title(str(r.get("message", ""))),
        )
        for r in results
        if r["status"] == "failed"
    )
    return failed, sum(r["status"] == "passed" for r in results)


def _without_title(message: str) -> str:
    """The lines of a report that say what is off: its title, layout and sizes stand elsewhere."""
    lines = [line.strip() for line in message.splitlines()[3:] if "packproof replay" not in line]
    return " ".join(filter(None, lines))[:_MESSAGE]
