"""Grades many submissions by Ray, kills workers meanwhile, and compares all verdicts, and some grades without Ray.

nice python -m tests.tools.grading.many --submissions 1000 --kill 0.33 --compare 200 --folder /tmp/many

Needs ray[default]. A folder with results is continued. Exit code 1 if anything was lost, changed or graded twice.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from packproof.grading import GradeOptions, GradeRun
from tests.tools.grading.many.killing import Killer
from tests.tools.grading.many.samples import write_samples

OPTIONS = GradeOptions("cpu", "secret of the test", timed=False)


def main() -> int:
    """Run it, and print what happened."""
    arguments = _arguments()
    with TemporaryDirectory(prefix="packproof-many-") as temporary:
        folder = Path(arguments.folder or temporary).resolve()
        verdicts = write_samples(folder, arguments.submissions)
        os.chdir(folder)
        with cluster(arguments.workers):
            _grade_and_kill(arguments.kill, arguments.seed)
        rows = _rows(Path("ray.jsonl"))
        problems = [*_problems(rows, verdicts), *_differences(rows, arguments.compare)]
    for problem in problems[:20]:
        print(problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, default=0.33, help="workers to kill for each grade that is done")
    parser.add_argument("--compare", type=int, default=0, help="how many to grade without Ray, too")
    parser.add_argument("--folder", help="where submissions and results are kept")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    return parser.parse_args()


@contextmanager
def cluster(workers: int) -> Iterator[None]:
    """A cluster of this machine with the state API, by which workers are killed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # relative to this process
    import ray  # noqa: PLC0415  (optional)

    # its dashboard has the state API
    ray.init("local", num_cpus=workers, object_store_memory=1 << 28, log_to_driver=False, include_dashboard=True)
    try:
        yield
    finally:
        ray.shutdown()


def _grade_and_kill(share: float, seed: int) -> None:
    start, count = time.monotonic(), 0
    with (
        GradeRun("list.jsonl", options=OPTIONS, ray="local", results="ray.jsonl", resume=True) as run,
        Killer(share, seed) as killer,
    ):
        for count, row in enumerate(run, 1):
            killer.grade_was_done(row.get("run", {"seconds": 1.0})["seconds"])
            if not count % 25:
                _report(count, killer.kills, time.monotonic() - start)
        _report(count, killer.kills, time.monotonic() - start)


def _report(count: int, kills: int, seconds: float) -> None:
    print(f"{count} graded, {kills} workers killed, {seconds:.0f} s, {count / seconds:.3f} per second", flush=True)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _problems(rows: list[dict[str, Any]], verdicts: Mapping[str, str]) -> Iterator[str]:
    """What was lost, graded twice, or has another verdict."""
    counts = Counter(row["name"] for row in rows)
    yield from (f"{name}: graded {counts[name]} times" for name in verdicts if counts[name] != 1)
    yield from (f"{name}: not in the list" for name in counts.keys() - verdicts.keys())
    for row in rows:
        verdict = row["grade"]["verdict"] if "grade" in row else row["error"]
        if verdict != verdicts.get(row["name"]):
            yield f"{row['name']}: {verdict}, expected {verdicts.get(row['name'])}"
    print(f"{len(rows)} rows, {Counter(verdicts.values())}")


def _differences(rows: list[dict[str, Any]], count: int) -> Iterator[str]:
    """Where the grade by a process of this machine has other bytes, for the first so many."""
    if not count:
        return
    start = time.monotonic()
    first = Path("first.jsonl")
    first.write_text("".join(Path("list.jsonl").read_text().splitlines(keepends=True)[:count]))
    with GradeRun(str(first), options=OPTIONS, results="local.jsonl", resume=True) as run:
        graded = sum(1 for _ in run)
    print(f"{graded} graded without Ray in {time.monotonic() - start:.0f} s", flush=True)
    by_ray = {row["name"]: row for row in rows}
    for row in _rows(Path("local.jsonl")):
        if json.dumps(row.get("grade")) != json.dumps(by_ray[row["name"]].get("grade")):
            yield f"{row['name']}: another grade without Ray"


if __name__ == "__main__":
    sys.exit(main())
