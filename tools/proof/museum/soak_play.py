"""The part of a soak in its throwaway root: plays submissions, and sees what they leave and change."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from packproof.base.machine import available_cores
from packproof.base.records import to_json
from packproof.museum.rogues import MARK, require_throwaway_root
from packproof.proof.museum.file_digest import changed_folders, folder_digests
from packproof.proof.museum.memory_group import is_zombie
from packproof.proof.museum.submissions import INCONCLUSIVE, Submission, submissions
from packproof.proof.museum.surroundings import Surroundings

_CALL_SECONDS, _CHECK_SECONDS = 5, 300  # for one call of a kernel; for its check
_END_SECONDS = 20
_FOLDER = Path(f"{MARK}/tmp")  # of the run
_NO_MEMORY = "this machine lacks memory"


@dataclass(frozen=True)
class Play:
    """One submission that was checked."""

    name: str
    kind: str
    code: int
    """The exit code of its check; -1 where that did not end in time."""
    is_right: bool
    """Whether it may have this exit code."""
    lacked_memory: bool = False
    """Whether it was not judged, since the machine lacked memory."""


@dataclass(frozen=True)
class Remains:
    """What is not as it was before the run."""

    changes: tuple[str, ...]
    """Folders, and properties of a neighbour."""
    processes: tuple[int, ...]
    """Those that were left."""


def main(seconds: str, seed: str) -> None:
    """Run in a throwaway root; prints a line of JSON for each `Play` as it ends, and the `Remains` at the end."""
    require_throwaway_root()
    with Surroundings() as surroundings:
        before = folder_digests(without=[str(_FOLDER)])
        for play in play_submissions(submissions(int(seed)), float(seconds)):
            print(json.dumps(to_json(play)), flush=True)
        changes = surroundings.changes()
        processes = _other_processes(surroundings.process_id)
        changes += changed_folders(before, folder_digests(without=[str(_FOLDER)]))
        print(json.dumps(to_json(Remains(tuple(changes), tuple(processes)))))


def play_submissions(source: Iterator[Submission], seconds: float) -> Iterator[Play]:
    """Check submissions for this long, as many side by side as there are cores. Those still running then are ended."""
    end, lock, cores = time.monotonic() + seconds, Lock(), available_cores()
    numbered = takewhile(lambda _: time.monotonic() < end, zip(count(), source, strict=False))
    plays: SimpleQueue[Play | None] = SimpleQueue()

    def next_pair() -> tuple[int, Submission] | None:
        with lock:
            return next(numbered, None)

    def play_on() -> None:
        try:
            while (pair := next_pair()) and (play := _play(*pair, end)):
                plays.put(play)
        finally:
            plays.put(None)

    with ThreadPoolExecutor(cores) as pool:
        lanes = [pool.submit(play_on) for _ in range(cores)]
        for _ in lanes:
            yield from iter(plays.get, None)
        for lane in lanes:
            lane.result()  # raises what it raised


def _play(number: int, submission: Submission, end: float) -> Play | None:
    """Check a submission; None if the time was up before it was done."""
    folder, start = _FOLDER / f"{number:05}", time.monotonic()
    folder.mkdir()
    limit = min(_CHECK_SECONDS, end - start)
    try:
        with (folder / "output").open("wb") as output:
            code = subprocess.run(
                _command(submission), cwd=folder, stdout=output, stderr=output, timeout=max(limit, 0), check=False
            ).returncode
    except subprocess.TimeoutExpired:
        if limit < _CHECK_SECONDS:
            return None
        code = -1
    print(f"{submission.name:<24} exit code {code}, {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    text, is_right = (folder / "output").read_text(errors="replace"), code in submission.exit_codes
    if not is_right:
        print(text[-2000:], file=sys.stderr, flush=True)
    lacked_memory = not is_right and code == INCONCLUSIVE and _NO_MEMORY in text
    return Play(submission.name, submission.kind, code, is_right, lacked_memory)


def _command(submission: Submission) -> list[str]:
    options = ["--device", "cpu", "--isolate", "--timeout", str(_CALL_SECONDS), "--json", "report.json"]
    return [sys.executable, "-P", "-m", "packproof", "check", *submission.options(), *options]


def _other_processes(neighbour: int) -> list[int]:
    """The processes in this namespace beside this one, what started it, and the neighbour.

    Those of the last checks have some seconds to end.
    """
    known, end = {1, os.getpid(), os.getppid(), neighbour}, time.monotonic() + _END_SECONDS
    while pids := set(_running_processes()) - known:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return sorted(pids)


def _running_processes() -> Iterator[int]:
    """Those of this namespace, whose first process leaves zombies."""
    return (int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and not is_zombie(pid))


if __name__ == "__main__":
    main(*sys.argv[1:])
