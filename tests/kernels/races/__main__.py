"""Seeded races on a GPU, found by plain repetition and under perturbation: `python -m tests.kernels.races`.

Each bug runs in a process of its own, one at a time on the GPU; the next ones import meanwhile. Then packproof's own
kernels are checked by `--property races`: correct kernels must be quiet.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.kernels.races.trial import SEEDED, Outcome

_AT_ONCE = 10  # processes: one makes its calls, the others import and compile
_WIDTHS = (46, 40, 12, 12, 12, 12)
_TAIL, _WIDEST = 4, 400  # lines and characters of a trial that failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a trial did not run, or a correct kernel was not quiet."""
    options = _parser().parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    names = [name for name in [*SEEDED, *_mutant_names(options.mutants)] if re.search(options.only, name)]
    outcomes, failures = [o for o in _earlier(options.resume) if o.name in names], 0
    _print_row("bug", "kernel", "plain", "load", "perturbed", "correct")
    for outcome in outcomes:
        _print_outcome(outcome)
    remaining = [name for name in names if name not in {o.name for o in outcomes}]
    for name, result in _trials(remaining, options.calls, deadline - options.seconds_of_check):
        if isinstance(result, Outcome):
            outcomes.append(result)
            _print_outcome(result)
            if options.resume:
                with options.resume.open("a", encoding="utf-8") as file:
                    print(json.dumps(asdict(result)), file=file)
        else:
            failures += 1
            _print_row(name, result)
    print(_summary(outcomes), flush=True)
    alarms = sum(bool(outcome.correct) for outcome in outcomes)
    quiet = _check_own_kernels(deadline) if options.seconds_of_check else True
    return int(bool(failures or alarms or not quiet))


def _earlier(file: Path | None) -> list[Outcome]:
    if file is None or not file.exists():
        return []
    return [Outcome(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.races", description=__doc__)
    parser.add_argument("--only", default="", help="bugs with this regular expression in their names")
    parser.add_argument("--calls", type=int, default=128, help="calls of each bug, in each way")
    parser.add_argument("--mutants", type=int, default=12, help="mutants of packproof's own sources")
    parser.add_argument("--resume", type=Path, help="a file of outcomes: those in it are not run, others are appended")
    parser.add_argument("--seconds", type=float, default=540, help="for all; what is not reached is said")
    parser.add_argument("--seconds-of-check", type=float, default=240, help="of these, for packproof's own kernels")
    return parser


def _mutant_names(count: int) -> list[str]:
    from tests.kernels.races.mutants import drawn  # noqa: PLC0415  (finds all mutants, a second)

    return [bug.name for bug in drawn(count)] if count else []


def _trials(names: Sequence[str], calls: int, deadline: float) -> Iterator[tuple[str, Outcome | str]]:
    """The outcome of each trial, or why there is none."""
    with tempfile.NamedTemporaryFile() as lock, ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(_run_trial, name, calls, lock.name, deadline): name for name in names}
        for future in as_completed(running):
            yield running[future], future.result()


def _run_trial(name: str, calls: int, lock: str, deadline: float) -> Outcome | str:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return "not reached in time"
    command = [sys.executable, "-m", "tests.kernels.races.trial", name, str(calls), lock]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "not done in time"
    if done.returncode:
        return f"exit code {done.returncode}: " + " | ".join(done.stderr.strip().splitlines()[-_TAIL:])[:_WIDEST]
    print(done.stderr.splitlines()[-1], file=sys.stderr, flush=True)  # its times
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _print_outcome(outcome: Outcome) -> None:
    shares = (outcome.plain, outcome.with_load, outcome.perturbed, outcome.correct)
    texts = ("-" if n is None else f"{n} of {outcome.calls}" for n in shares)
    _print_row(outcome.name, outcome.source, *texts)


def _print_row(*cells: str) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)).rstrip(), flush=True)


def _summary(outcomes: Sequence[Outcome]) -> str:
    by_way = (("plain repetition", "plain"), ("other work beside it", "with_load"), ("pauses too", "perturbed"))
    lines = [f"{label}: {sum(getattr(o, way) > 0 for o in outcomes)} of {len(outcomes)} bugs" for label, way in by_way]
    missed = [o.name for o in outcomes if not o.perturbed]
    alarms = [o.name for o in outcomes if o.correct]
    return "\n".join([*lines, f"not detected: {', '.join(missed) or 'none'}", f"alarms: {', '.join(alarms) or 'none'}"])


def _check_own_kernels(deadline: float) -> bool:
    """Whether packproof's own kernels are quiet in bf16, in the time that is left."""
    seconds = max(int(deadline - time.monotonic()), 1)
    options = [
        "--device",
        "cuda",
        "--property",
        "races",
        "--dtype",
        "bf16",
        "--profile",
        "quick",
        "--max-time",
        f"{seconds}s",
    ]
    done = subprocess.run([sys.executable, "-m", "packproof", "check", *options], check=False)
    return done.returncode in (0, 4)  # 4: what was judged held, and not all was


if __name__ == "__main__":
    sys.exit(main())
