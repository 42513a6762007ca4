"""Grades by Ray with little memory, in a throwaway root: nothing may be left running, and no file elsewhere change.

nice python -m tests.tools.grading.many.soak --minutes 10

Some submissions take all memory; their grade fails or is not made. Workers are killed meanwhile. Exit code 1 if a
verdict was another one, a process was left, or a folder had changed that did not change on the machine itself, too.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packproof.grading import GradeRun
from packproof.museum.rogues import MARK, require_throwaway_root
from packproof.proof.museum.file_digest import changed_folders, folder_digests, has_changed_since
from packproof.proof.museum.memory_group import is_zombie, memory_group
from packproof.proof.museum.throwaway_root import environment, throwaway_root
from tests.tools.grading.many.__main__ import OPTIONS, cluster
from tests.tools.grading.many.killing import Killer
from tests.tools.grading.many.samples import write_samples

_MEMORY, _PROCESSES = 4 << 30, 4096
_FOLDER = Path(f"{MARK}/tmp")  # of the run
_SUBMISSIONS, _GREEDY_EVERY = 1000, 20
_GREEDY = """import torch


def conv(x, weight, *, cu_seqlens):
    pieces = []
    while len(x) > 1:
        pieces.append(torch.ones(1 << 28, dtype=torch.uint8))
    return x
"""
_SPARE_SECONDS, _END_SECONDS = 1200, 30  # for start and digests; for the last processes


def main() -> int:
    """Run it, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--inside", action="store_true", help="used by this command itself")
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(_play(60 * arguments.minutes)))
        return 0
    wall_start = time.time()
    with throwaway_root() as prefix, memory_group(_MEMORY, _PROCESSES) as group:
        command = [*prefix, sys.executable, "-P", "-m", __spec__.name, "--inside", "--minutes", str(arguments.minutes)]
        output = subprocess.run(
            command,
            env={**environment(), "PYTHONDONTWRITEBYTECODE": "1", "RAY_TMPDIR": str(_FOLDER)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=group.join,
            timeout=60 * arguments.minutes + _SPARE_SECONDS,
            check=True,
            text=True,
        ).stdout
        left, kills = group.members(), group.kills()
    result = json.loads(output.splitlines()[-1])
    changes = [name for name in result["changes"] if not has_changed_since(Path(name), wall_start)]
    others = len(result["changes"]) - len(changes)
    problems = [*result["wrong"], *map("changed: {}".format, changes), *map("left: {}".format, left + result["left"])]
    print("\n".join(problems))
    print(f"{result['counts']}, {result['killed']} workers killed, {kills} processes ended for want of memory")
    print(f"{others} folders changed on the machine itself meanwhile; {len(problems)} problems")
    return 1 if problems else 0


def _play(seconds: float) -> dict[str, Any]:
    """In the throwaway root: what happened, as data."""
    require_throwaway_root()
    folder = _FOLDER / "run"
    verdicts = write_samples(folder, _SUBMISSIONS)
    for name in list(verdicts)[::_GREEDY_EVERY]:
        (folder / f"submissions/{name}.py").write_text(f"# {name}\n{_GREEDY}")
        verdicts[name] = "failed"
    os.chdir(folder)
    before = folder_digests(without=[str(_FOLDER)])
    rows, killed = _graded_rows(seconds)
    known, end = {1, os.getpid(), os.getppid()}, time.monotonic() + _END_SECONDS
    while (left := _processes() - known) and time.monotonic() < end:
        time.sleep(0.1)
    changes = changed_folders(before, folder_digests(without=[str(_FOLDER)]))
    counts = Counter(_verdict(row) for row in rows)
    return {
        "wrong": [text for row in rows if (text := _wrong(row, verdicts))],
        "counts": ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())),
        "killed": killed,
        "left": [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:100] for pid in left],
        "changes": changes,
    }


def _graded_rows(seconds: float) -> tuple[list[dict[str, Any]], int]:
    """The rows made in so many seconds; grades in flight are ended then."""
    rows, end = [], time.monotonic() + seconds
    with (
        cluster(2),
        GradeRun("list.jsonl", options=OPTIONS, ray="local", results="ray.jsonl") as run,
        Killer(0.33, 0) as killer,
    ):
        for row in run:
            print(row["name"], _verdict(row), row.get("error", ""), file=sys.stderr, flush=True)
            rows.append(row)
            killer.grade_was_done(row.get("run", {"seconds": 1.0})["seconds"])
            if time.monotonic() > end:
                break
        return rows, killer.kills


def _verdict(row: Mapping[str, Any]) -> str:
    return str(row["grade"]["verdict"]) if "grade" in row else "not graded"


def _wrong(row: Mapping[str, Any], verdicts: Mapping[str, str]) -> str:
    """Another verdict than alone, in words: want of memory is none."""
    unjudged = ("inconclusive", "not graded")
    name = row["name"]
    return "" if _verdict(row) in (verdicts[name], *unjudged) else f"{name}: {_verdict(row)}, alone {verdicts[name]}"


def _processes() -> set[int]:
    return {int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and not is_zombie(pid)}


if __name__ == "__main__":
    sys.exit(main())
