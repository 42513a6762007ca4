"""A soak of the judge: hundreds of submissions, side by side and with little memory, in a throwaway root.

Each is a `packproof check --isolate` of its own, as a judge would start it. No verdict may change, no process be left,
and no file outside of the folder of the run be another one.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Any

from packproof.base.machine import available_cores
from packproof.base.wording import plural
from packproof.museum.rogues import MARK, require_throwaway_root
from packproof.proof.museum.file_digest import changed_folders, folder_digest, folder_digests
from packproof.proof.museum.memory_group import memory_group
from packproof.proof.museum.submissions import Submission, submissions
from packproof.proof.museum.surroundings import Surroundings
from packproof.proof.museum.throwaway_root import environment, throwaway_root

_MEMORY, _PROCESSES = 4 << 30, 4096  # of the whole soak
_CALL_SECONDS, _CHECK_SECONDS = 5, 300  # for one call of a kernel; for its check
_END_SECONDS = 20
_MOST_CHANGES = 20  # in lines
_FOLDER = f"{MARK}/tmp"  # of the run


@dataclass(frozen=True)
class SoakResult:
    """What a soak has seen."""

    counts: dict[str, int]
    """Submissions by kind."""
    wrong_codes: tuple[str, ...]
    """Those with another exit code than is right, each with it."""
    changes: tuple[str, ...]
    """What is not as it was around the run: folders, a neighbour's process, its services."""
    processes: tuple[int, ...]
    """Those that were left."""
    kills: int
    """Processes that the system ended for want of memory."""
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether nothing changed."""
        return not (self.wrong_codes or self.changes or self.processes)


def run_soak(seconds: float, n_least: int, seed: int) -> SoakResult:
    """Play submissions for this long, and this many at least.

    Raises ThrowawayRootError or NoControlGroupError where it cannot be run here.
    """
    start = time.monotonic()
    with throwaway_root() as prefix, memory_group(_MEMORY, _PROCESSES) as group:
        before = folder_digests()
        with subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", __name__, str(seconds), str(n_least), str(seed)],
            env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=group.join,  # noqa: PLW1509  (this process has no other thread)
            text=True,
        ) as process:
            assert process.stdout
            answer: dict[str, Any] = json.loads(process.stdout.readline() or "{}")
            changed_outside = {*changed_folders(before, folder_digests())}
            changes = json.loads(process.communicate("\n")[0] or "[]")
        processes, kills = (*answer["processes"], *group.members()), group.kills()
    # others have changed what is also changed on the machine itself, or what is gone again in a folder that is
    changes = tuple(
        name for name in changes if changed_outside.isdisjoint({name, *map(str, Path(name).parents)} - {"/"})
    )
    wrong = tuple(answer["wrong_codes"])
    return SoakResult(answer["counts"], wrong, changes, processes, kills, time.monotonic() - start)


def soak_lines(result: SoakResult) -> Iterator[str]:
    """A soak in words."""
    yield from (f"another exit code than alone: {text}" for text in result.wrong_codes)
    yield from (f"changed: {name}" for name in result.changes[:_MOST_CHANGES])
    yield from (f"left running: process {pid}" for pid in result.processes)
    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(result.counts.items()))
    yield (
        f"{plural(sum(result.counts.values()), 'submission')} ({counts}) in {result.seconds:.0f} s, "
        f"{plural(result.kills, 'time')} out of memory: {plural(len(result.wrong_codes), 'verdict')} changed, "
        f"{plural(len(result.changes), 'place')} changed, processes left: {len(result.processes)}"
    )


def main(seconds: str, n_least: str, seed: str) -> None:
    """Run in a throwaway root; prints JSON: counts, wrong exit codes and processes left, then, once asked, changes."""
    require_throwaway_root()
    with Surroundings() as surroundings:
        before = folder_digests(without=[_FOLDER])
        played = list(_play(float(seconds), int(n_least), int(seed)))
        changes = surroundings.changes()
        processes = _other_processes(surroundings.process_id)
        folders = changed_folders(before, folder_digests(without=[_FOLDER]))
        wrong_codes = [f"{s.name} ({s.kind}): {code}" for s, code in played if code not in s.exit_codes]
        counts = Counter(submission.kind for submission, _ in played)
        print(json.dumps({"counts": counts, "wrong_codes": wrong_codes, "processes": processes}), flush=True)
        sys.stdin.readline()  # folders of others may have come and gone meanwhile
        changes += [folder for folder in folders if folder_digest(folder, [_FOLDER])[0] != before.get(folder, "")]
        print(json.dumps(changes))


def _play(seconds: float, n_least: int, seed: int) -> Iterator[tuple[Submission, int]]:
    """The exit codes of submissions, as many side by side as there are cores."""
    end = time.monotonic() + seconds
    numbered = takewhile(lambda pair: pair[0] < n_least or time.monotonic() < end, enumerate(submissions(seed)))
    lock, cores = Lock(), available_cores()

    def play_next() -> Iterator[tuple[Submission, int]]:
        while True:
            with lock:
                pair = next(numbered, None)
            if pair is None:
                return
            yield pair[1], _exit_code(*pair)

    with ThreadPoolExecutor(cores) as pool:
        for share in pool.map(lambda _: list(play_next()), range(cores)):
            yield from share


def _exit_code(number: int, submission: Submission) -> int:
    """The exit code of its check; -1 where that does not end in time."""
    folder = Path(_FOLDER) / f"{number:05}"
    folder.mkdir()
    start = time.monotonic()
    options = ["--device", "cpu", "--isolate", "--timeout", str(_CALL_SECONDS), "--json", "report.json"]
    command = [sys.executable, "-P", "-m", "packproof", "check", *submission.options(), *options]
    try:
        with (folder / "output").open("wb") as output:
            code = subprocess.run(
                command, cwd=folder, stdout=output, stderr=output, timeout=_CHECK_SECONDS, check=False
            ).returncode
    except subprocess.TimeoutExpired:
        code = -1
    print(f"{submission.name:<24} exit code {code}, {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    if code not in submission.exit_codes:
        text = (folder / "output").read_text(errors="replace")[-2000:]
        print(text, file=sys.stderr, flush=True)
    return code


def _other_processes(neighbour: int) -> list[int]:
    """The processes in this namespace beside this one, what started it, and the neighbour; those of the last check have
    some seconds to end."""
    known, end = {1, os.getpid(), os.getppid(), neighbour}, time.monotonic() + _END_SECONDS
    while pids := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid not in known]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return pids


if __name__ == "__main__":
    main(*sys.argv[1:])
