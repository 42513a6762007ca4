"""Kill packproof's own processes at random moments of a small check: verdicts stay the same, no process remains."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packproof.harness.worker.zygote import NAME

Kind = Literal["main", "evaluator", "keeper", "zygote", "worker"]
KINDS: tuple[Kind, ...] = ("main", "evaluator", "keeper", "zygote", "worker")
_BELOW: dict[Kind, Kind] = {"keeper": "zygote", "zygote": "worker", "worker": "worker"}
_ROGUES = "packproof.museum.rogues.answers"
_KERNELS = ("calls_the_reference", "short_packs_only")  # a correct kernel, and an incorrect one
_CHECK = ["--op", "packproof.harness.validation.museum.rogues:RUNNING_SUM", "--dtype", "float32,bfloat16"]
_CHECK += ["--property", "reference,determinism", "--profile", "quick", "--device", "cpu", "--json"]
_LONGEST = 120.0
_TRIES = 3  # a kill may come when no process of its kind is running


@dataclass(frozen=True)
class Kill:
    """The result of one kill."""

    kind: Kind
    """The kind of the process."""
    after: float
    """Seconds from the start of the check to the kill."""
    hit: bool
    """Whether a process of this kind was running."""
    wrong: str
    """How the check deviated from an undisturbed one, "" if it did not."""


def kills(count: int, seed: int, folder: Path, kinds: Sequence[Kind] = KINDS) -> Iterator[Kill]:
    """Run checks, alternating between both kernels, and kill one process in each, cycling through the kinds."""
    draw = random.Random(seed)
    undisturbed: dict[str, tuple[Any, float]] = {}
    for number in range(count):
        kernel = _KERNELS[number // len(kinds) % len(_KERNELS)]
        if kernel not in undisturbed:
            undisturbed[kernel] = _undisturbed(kernel, folder / f"{kernel}.json")
        expected, whole = undisturbed[kernel]
        for _ in range(_TRIES):  # on a busy machine the next check may be much shorter
            after = draw.uniform(0.05, 0.6) * whole
            kill = _kill(kinds[number % len(kinds)], kernel, expected, draw, after, folder / f"{number}.json")
            if kill.hit or kill.wrong:
                break
            whole /= 2
        yield kill


def _undisturbed(kernel: str, report: Path) -> tuple[Any, float]:
    """The verdicts of an undisturbed check of a kernel, and its seconds."""
    began = time.monotonic()
    with _started(kernel, report) as check:
        check.communicate()
    return _verdicts(report), time.monotonic() - began


def _kill(kind: Kind, kernel: str, expected: Any, draw: random.Random, after: float, report: Path) -> Kill:
    hit = False
    with _started(kernel, report) as check:
        time.sleep(after)
        seen: dict[int, Kind] = {}
        while not hit and check.poll() is None:  # until a process of that kind exists
            seen = _processes(check.pid)
            if found := [pid for pid, other in seen.items() if other == kind]:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(found), signal.SIGKILL)
                    hit = True
        try:
            output, _ = check.communicate(timeout=_LONGEST)
        except subprocess.TimeoutExpired:
            check.kill()
            return Kill(kind, after, hit, "it did not finish")
    wrong = _left(seen)
    if not wrong and not (kind == "main" and hit):
        got = _verdicts(report)
        wrong = "" if got == expected else f"{got}\n{output.decode(errors='replace')[-2000:]}"
    return Kill(kind, after, hit, wrong)


def _started(kernel: str, report: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "packproof", "check", f"{_ROGUES}:{kernel}", *_CHECK, str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=report.parent,
        start_new_session=True,
    )


def _processes(main: int) -> dict[int, Kind]:
    """The kinds of packproof's processes at or below this one, by id."""
    found: dict[int, Kind] = {main: "main"}
    below: list[tuple[int, Kind]] = [(main, "main")]
    while below:
        parent, kind = below.pop()
        for pid in _processes_below(parent):
            forks = _read(f"/proc/{pid}/comm").decode().strip() == NAME
            of_pid = _BELOW.get(kind, "keeper" if forks else "evaluator")
            found[pid] = of_pid
            below.append((pid, of_pid))
    return found


def _processes_below(pid: int) -> list[int]:
    return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


def _read(file: str) -> bytes:
    with suppress(OSError):
        return Path(file).read_bytes()
    return b""


def _left(seen: dict[int, Kind]) -> str:
    """The processes still running ten seconds after the check, as text; "" if there are none."""
    end = time.monotonic() + 10
    while left := [pid for pid in seen if b"packproof" in _read(f"/proc/{pid}/cmdline")]:
        if time.monotonic() > end:
            return f"left running: {', '.join(f'{seen[pid]} {pid}' for pid in left)}"
        time.sleep(0.05)
    return ""


def _verdicts(report: Path) -> Any:
    """Property, dtype and status of each result, or the reason for an incomplete report."""
    try:
        return [(r["property"], r["dtype"], r["status"]) for r in json.loads(report.read_text())["results"]]
    except (OSError, ValueError, KeyError) as error:
        return f"no complete report: {error}"


def tally(found: list[Kill]) -> str:
    """The number of killed processes of each kind."""
    hit = Counter(kill.kind for kill in found if kill.hit)
    return ", ".join(f"{hit[kind]} {kind}" for kind in KINDS)


def main() -> int:
    """Run as `python -m packproof.harness.validation.museum.kills COUNT`: prints each; exit code 1 if one deviated."""
    with tempfile.TemporaryDirectory() as folder:
        found: list[Kill] = []
        for kill in kills(int(sys.argv[1]), 0, Path(folder)):
            quiet = "same verdicts" if kill.hit else "no such process"
            print(f"{kill.kind} after {kill.after:.2f} s: {kill.wrong or quiet}", flush=True)
            found.append(kill)
    wrong = [kill for kill in found if kill.wrong]
    print(f"killed {tally(found)}; {len(wrong)} of {len(found)} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
