"""Pairs of an incorrect kernel and its correct version through the command line, as a user checks them.

python -m packproof.proof.pairs tests/siblings/pairs.json others.json --profiles quick,standard --json pairs.json

A file has a list of `Pair` as JSON. Its targets are found from the file's folder, or from a folder beside it. The exit
code is 0 if each incorrect one fails in words that name the cause, and each correct one passes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from packproof.base.files import replace_text
from packproof.base.records import read_record
from packproof.properties.contracts import Contract, contract_text
from packproof.properties.declarations import Promises
from packproof.properties.ops import OPS

FAILED, PASSED = 1, 0


@dataclass(frozen=True)
class Pair:
    """An incorrect target and its correct version, which differ in one thing."""

    name: str
    incorrect: str
    correct: str
    says: str
    """Words of the report that name the cause."""
    about: str = ""
    """What callers do, and tests do not, such as "keys"."""
    entry: str = ""
    """Its entry in the museum, if it has one."""
    op: str = ""
    profile: str = "quick"
    """The first profile that detects it."""
    promises: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""
    """Where the targets are, seen from the folder of the file."""
    command: tuple[str, ...] = ("check", "--device", "cpu")
    """Of packproof, with its options."""


@dataclass(frozen=True)
class PairFile:
    """A file of pairs."""

    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class PairRun:
    """One target at one profile."""

    name: str
    about: str
    target: str
    is_correct: bool
    profile: str
    exit_code: int
    names_cause: bool
    seconds: float
    report: str
    """All that it printed."""

    @property
    def is_expected(self) -> bool:
        return self.exit_code == PASSED if self.is_correct else self.exit_code == FAILED and self.names_cause


def read_pairs(file: Path) -> list[Pair]:
    """The pairs of a file, with folders from here."""
    pairs = read_record(PairFile, file, str(file), "hand").pairs
    return [replace(pair, folder=str(file.parent / pair.folder)) for pair in pairs]


def run_pairs(pairs: Sequence[Pair], profiles: Sequence[str], seconds: float = 600.0) -> Iterator[PairRun]:
    """Each incorrect target at the first profile that detects it, and each correct one, once, at every profile.

    An incorrect one is checked until it fails; wholly, if that failure does not name the cause.

    profiles: of the correct ones.
    seconds: until a run is ended; its exit code is -1.
    """
    correct_ones = set()
    for pair in pairs:
        run = _run(pair, pair.incorrect, pair.profile, "-x", seconds=seconds)
        is_whole = run.is_expected or pair.command[0] != "check"
        yield run if is_whole else _run(pair, pair.incorrect, pair.profile, seconds=seconds)
        for profile in profiles:
            if (correct := (pair.folder, pair.correct, pair.command, profile)) not in correct_ones:
                correct_ones.add(correct)
                yield _run(pair, pair.correct, profile, seconds=seconds)


def _run(pair: Pair, target: str, profile: str, *more: str, seconds: float) -> PairRun:
    command, *options = pair.command
    is_correct = target == pair.correct
    if command == "check":
        options += ["--profile", profile, *(["--op", pair.op] if pair.op else []), *more]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if pair.promises:
            options += ["--contract", str(_contract(pair, Path(folder)))]
        arguments = [sys.executable, "-m", "packproof", *command.split(), target, *options]
        try:
            done = subprocess.run(
                arguments, cwd=pair.folder, capture_output=True, text=True, timeout=seconds, check=False
            )
            exit_code, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            exit_code, text = -1, f"no verdict in {seconds:g} s"
    names_cause = not is_correct and pair.says in text
    taken = round(time.monotonic() - start, 1)
    return PairRun(pair.name, pair.about, target, is_correct, profile, exit_code, names_cause, taken, text)


def _contract(pair: Pair, folder: Path) -> Path:
    """A contract with the promises of the pair; a user's kernel would declare them."""
    file = folder / "contract.json"
    contract = replace(Contract.for_op(OPS[pair.op]), promises=Promises(**pair.promises), profile="quick")
    file.write_text(contract_text(contract), encoding="utf-8")
    return file


def _telling_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return next((line for line in lines if "FAILED" in line), lines[-1])[:200]


def line_of(run: PairRun) -> str:
    kind, verdict = "correct" if run.is_correct else "incorrect", "" if run.is_expected else "  NOT AS EXPECTED"
    words = "" if run.is_correct or run.names_cause else ", cause not named"
    head = f"{run.name:<34} {kind:<9} {run.profile:<8} exit {run.exit_code}{words} {run.seconds:6.1f} s"
    return f"{head}  {_telling_line(run.report)}{verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("files", type=Path, nargs="+", help="such as tests/siblings/pairs.json")
    parser.add_argument("--profiles", default="quick,standard", help="at which the correct ones pass")
    parser.add_argument("--seconds", type=float, default=600.0, help="until a run is ended")
    parser.add_argument("--about", default="", help="only pairs about this")
    parser.add_argument("--dtype", default="", help="only this dtype, for time")
    parser.add_argument("--json", type=Path, help="write the runs to this file")
    arguments = parser.parse_args()
    pairs = [pair for file in arguments.files for pair in read_pairs(file) if arguments.about in ("", pair.about)]
    if arguments.dtype:
        pairs = [replace(p, command=(*p.command, "--dtype", arguments.dtype)) for p in pairs if p.command[0] == "check"]
    runs: list[PairRun] = []
    for run in run_pairs(pairs, arguments.profiles.split(","), arguments.seconds):
        runs.append(run)
        print(line_of(run), flush=True)
        if arguments.json:
            replace_text(arguments.json, json.dumps({"version": 1, "runs": [asdict(r) for r in runs]}, indent=1) + "\n")
    expected, incorrect = [run for run in runs if run.is_expected], [run for run in runs if not run.is_correct]
    detected = sum(run in expected for run in incorrect)
    print(f"{detected} of {len(incorrect)} incorrect ones fail and name the cause; ", end="")
    print(f"{len(expected) - detected} of {len(runs) - len(incorrect)} runs of correct ones pass")
    return 0 if len(expected) == len(runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
