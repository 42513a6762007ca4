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

from packproof.harness.process import PROCESS_NAME

Kind = Literal["main", "evaluator", "keeper", "zygote", "worker"]
KINDS: tuple[Kind, ...] = ("main", "evaluator", "keeper", "zygote", "worker")
_CHILD_KINDS: dict[Kind, Kind] = {"keeper": "zygote", "zygote": "worker", "worker": "worker"}
_ROGUES = "packproof.museum.rogues.answers"
_KERNELS = ("calls_the_reference", "short_packs_only")  # a correct kernel, and an incorrect one
_CHECK = ["--op", "packproof.proof.museum.rogues:RUNNING_SUM", "--dtype", "float32,bfloat16"]
_CHECK += ["--property", "reference,determinism", "--profile", "quick", "--device", "cpu", "--json"]
_TIMEOUT = 120.0
_TRIES = 3  # a kill may come when no process of its kind is running


@dataclass(frozen=True)
class Kill:
    """The result of one kill."""

    kind: Kind
    """The kind of the process."""
    delay: float
    """Seconds from the start of the check to the kill."""
    hit: bool
    """Whether a process of this kind was running."""
    deviation: str
    """How the check deviated from an undisturbed one, "" if it did not."""


def kills(count: int, seed: int, folder: Path, kinds: Sequence[Kind] = KINDS) -> Iterator[Kill]:
    """Run checks, alternating between both kernels, and kill one process in each, cycling through the kinds."""
    draw = random.Random(seed)
    baselines: dict[str, tuple[Any, float]] = {}
    for number in range(count):
        kernel = _KERNELS[number // len(kinds) % len(_KERNELS)]
        if kernel not in baselines:
            baselines[kernel] = _baseline(kernel, folder / f"{kernel}.json")
        expected, duration = baselines[kernel]
        for _ in range(_TRIES):  # on a busy machine the next check may be much shorter
            delay = draw.uniform(0.05, 0.6) * duration
            kill = _kill(kinds[number % len(kinds)], kernel, expected, draw, delay, folder / f"{number}.json")
            if kill.hit or kill.deviation:
                break
            duration /= 2
        yield kill


def _baseline(kernel: str, report: Path) -> tuple[Any, float]:
    """The verdicts of an undisturbed check of a kernel, and its seconds."""
    start = time.monotonic()
    with _start_check(kernel, report) as check:
        check.communicate()
    return _verdicts(report), time.monotonic() - start


def _kill(kind: Kind, kernel: str, expected: Any, draw: random.Random, delay: float, report: Path) -> Kill:
    hit = False
    with _start_check(kernel, report) as check:
        time.sleep(delay)
        processes: dict[int, Kind] = {}
        while not hit and check.poll() is None:  # until a process of that kind exists
            processes = _processes(check.pid)
            if pids := [pid for pid, process_kind in processes.items() if process_kind == kind]:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    hit = True
        try:
            output, _ = check.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            check.kill()
            return Kill(kind, delay, hit, "it did not finish")
    deviation = _remaining_processes(processes)
    if not deviation and not (kind == "main" and hit):
        actual = _verdicts(report)
        deviation = "" if actual == expected else f"{actual}\n{output.decode(errors='replace')[-2000:]}"
    return Kill(kind, delay, hit, deviation)


def _start_check(kernel: str, report: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "packproof", "check", f"{_ROGUES}:{kernel}", *_CHECK, str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=report.parent,
        start_new_session=True,
    )


def _processes(main: int) -> dict[int, Kind]:
    """The kinds of packproof's processes at or below this one, by id."""
    kinds: dict[int, Kind] = {main: "main"}
    pending: list[tuple[int, Kind]] = [(main, "main")]
    while pending:
        parent, kind = pending.pop()
        for pid in _processes_below(parent):
            forks = _read_proc(f"/proc/{pid}/comm").decode().strip() == PROCESS_NAME
            child_kind = _CHILD_KINDS.get(kind, "keeper" if forks else "evaluator")
            kinds[pid] = child_kind
            pending.append((pid, child_kind))
    return kinds


def _processes_below(pid: int) -> list[int]:
    return [int(child) for child in _read_proc(f"/proc/{pid}/task/{pid}/children").split()]


def _read_proc(file: str) -> bytes:
    with suppress(OSError):
        return Path(file).read_bytes()
    return b""


def _remaining_processes(processes: dict[int, Kind]) -> str:
    """The processes still running ten seconds after the check, as text; "" if there are none."""
    deadline = time.monotonic() + 10
    while remaining := [pid for pid in processes if b"packproof" in _read_proc(f"/proc/{pid}/cmdline")]:
        if time.monotonic() > deadline:
            return f"left running: {', '.join(f'{processes[pid]} {pid}' for pid in remaining)}"
        time.sleep(0.05)
    return ""


def _verdicts(report: Path) -> Any:
    """Property, dtype and status of each result, or the reason for an incomplete report."""
    try:
        return [(r["property"], r["dtype"], r["status"]) for r in json.loads(report.read_text())["results"]]
    except (OSError, ValueError, KeyError) as error:
        return f"no complete report: {error}"


def tally(results: list[Kill]) -> str:
    """The number of killed processes of each kind."""
    hit = Counter(kill.kind for kill in results if kill.hit)
    return ", ".join(f"{hit[kind]} {kind}" for kind in KINDS)


def main() -> int:
    """Run as `python -m packproof.proof.museum.kills COUNT`: prints each; exit code 1 if one deviated."""
    with tempfile.TemporaryDirectory() as folder:
        results: list[Kill] = []
        for kill in kills(int(sys.argv[1]), 0, Path(folder)):
            text = "same verdicts" if kill.hit else "no such process"
            print(f"{kill.kind} after {kill.delay:.2f} s: {kill.deviation or text}", flush=True)
            results.append(kill)
    deviations = [kill for kill in results if kill.deviation]
    print(f"killed {tally(results)}; {len(deviations)} of {len(results)} went wrong")
    return 1 if deviations else 0


if __name__ == "__main__":
    sys.exit(main())
