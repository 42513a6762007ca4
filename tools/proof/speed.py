"""How long packproof takes.

    python -m packproof.proof.speed [NAME]... [--museum] [--json FILE] [--compare FILE]

NAME is one of CHECKS. Every figure is a multiple of the time of `python -c "import torch, triton"` on the same machine,
measured just before: so figures of two machines can be compared. Checks are measured in CPU seconds of all processes,
starts and first failures in wall-clock seconds.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packproof.base.records import read_record, to_row
from packproof.museum import Entry, entries

_CONVOLUTION = ("packproof.museum.convolution:correct", "--op", "causal_conv1d")
_TILES = ("packproof.museum.tiles:correct", "--op", "causal_conv1d")
CHECKS: dict[str, tuple[str, ...]] = {
    "conv": _CONVOLUTION,
    "conv-quick": (*_CONVOLUTION, "--profile", "quick"),
    "ssd": ("packproof.refs:ssd_chunked", "--op", "ssd"),
    "triton-rope": ("packproof.kernels.rope:rope", "--op", "rope"),
    "triton-conv": _TILES,
    "triton-conv-quick": (*_TILES, "--profile", "quick"),
}
_FIRST_CALL = """
import time
def conv(x, weight, *, cu_seqlens):
    raise RuntimeError(f"called at {time.time()} s")
"""
_DECLARED = """
import packproof
from {module} import {name} as kernel
kernel = packproof.kernel(op={op!r}, promises=packproof.Promises(**{promises!r}), gradients={gradients})(kernel)
"""
_IMPORT = ("-c", "import torch, triton")
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
_SLACK = 1.4  # two runs of a check on a busy machine differ by a fifth
_LIMIT = 300.0


@dataclass(frozen=True)
class Speed:
    """One figure."""

    name: str
    """The check, or the start or failure in words."""
    clock: Literal["cpu", "wall"]
    """The clock: CPU seconds of all processes, or wall-clock seconds."""
    seconds: float
    units: float
    """The seconds as a multiple of importing torch and triton."""


def measure(checks: Sequence[str], *, starts: bool = True, museum: bool = False) -> Iterator[Speed]:
    """Measure these checks, one after another.

    starts: whether to measure the starts first.
    museum: whether to measure, last, the time to the first failure of the museum's entries.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unit = statistics.median(_cpu_seconds(_IMPORT, folder) for _ in range(3))
        wall = min(import_seconds(folder) for _ in range(3))
        if starts:
            yield Speed("import torch, triton", "wall", wall, 1.0)
            yield from _starts(folder, wall)
        for check in checks:
            cpu_seconds = _cpu_seconds(["-m", "packproof", "check", *CHECKS[check], "--device", "cpu"], folder)
            yield Speed(check, "cpu", cpu_seconds, cpu_seconds / unit)
        if museum:
            yield from _first_failures(folder, wall)


def _starts(folder: Path, wall: float) -> Iterator[Speed]:
    for command in ("--help", "list"):
        command_seconds = min(_wall_seconds(["-m", "packproof", command], folder) for _ in range(3))
        yield Speed(f"packproof {command}", "wall", command_seconds, command_seconds / wall)
    call_seconds = min(first_call(folder) for _ in range(3))
    yield Speed("to the first call", "wall", call_seconds, call_seconds / wall)


def _cpu_seconds(arguments: Sequence[str], folder: Path) -> float:
    """CPU seconds of a Python process and of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _wall_seconds(arguments, folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _wall_seconds(arguments: Sequence[str], folder: Path) -> float:
    start = time.monotonic()
    command = [sys.executable, *arguments]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if process.returncode:  # the time of a failing check is no figure
        raise RuntimeError(
            f"{' '.join(arguments)} ended with exit code {process.returncode}:\n{process.stdout[-2000:]}"
        )
    return time.monotonic() - start


def import_seconds(folder: Path) -> float:
    """Seconds for `import torch, triton` in a new process."""
    return _wall_seconds(_IMPORT, folder)


def first_call(folder: Path, *options: str) -> float:
    """Seconds from the command until the kernel is called, in a quick check with these options."""
    source = folder / "first_call.py"
    source.write_text(_FIRST_CALL)
    command = ["-m", "packproof", "check", f"{source}:conv", *_CONVOLUTION[1:], "--profile", "quick", *options]
    start = time.time()
    process = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    # the kernel can write no file, but its exception is reported
    calls = [float(second) for second in re.findall(r"called at ([\d.]+) s", process.stdout)]
    if not calls:
        raise RuntimeError(
            f"{' '.join(command)} never called the kernel, exit code {process.returncode}:\n{process.stdout[-2000:]}"
        )
    return min(calls) - start


def _first_failures(folder: Path, wall: float) -> Iterator[Speed]:
    """The time to the first printed failure, over all entries of the museum for a CPU."""
    seconds = sorted(_first_failure(entry, folder) for entry in entries().values() if not entry.needs_gpu)
    for statistic, quantile in (("median", 0.5), ("90th percentile", 0.9), ("longest", 1.0)):
        value = seconds[min(int(quantile * len(seconds)), len(seconds) - 1)]
        yield Speed(f"first failure of {len(seconds)} bugs, {statistic}", "wall", value, value / wall)


def _first_failure(entry: Entry, folder: Path) -> float:
    module, _, name = entry.kernel.partition(":")
    source = folder / f"{entry.id}.py"
    fields = {"op": entry.op, "promises": dict(entry.promises), "gradients": entry.gradients}
    source.write_text(_DECLARED.format(module=module, name=name, **fields))
    command = [sys.executable, "-m", "packproof", "check", f"{source}:kernel", "--device", "cpu", "--timeout", "6"]
    start = time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | _UNBUFFERED
    ) as process:
        assert process.stdout is not None
        failing = any(line.startswith(("failing ", "failed ")) for line in process.stdout)
        seconds = time.monotonic() - start
        process.kill()
    if not failing:
        raise RuntimeError(f"{entry.id}: the check of a kernel with a bug printed no failure")
    return seconds


def read_speeds(file: Path) -> list[Speed]:
    """The figures in a file of --json."""
    return list(read_record(tuple[Speed, ...], file, str(file), "`python -m packproof.proof.speed`"))


def find_slower(now: Sequence[Speed], before: Sequence[Speed]) -> list[str]:
    """The figures with more units now than before, by more than the usual difference of two runs."""
    units_before = {speed.name: speed.units for speed in before}
    regressions = [(s, units_before[s.name]) for s in now if s.units > _SLACK * units_before.get(s.name, float("inf"))]
    return [f"{speed.name}: {speed.units:.1f} units, {was:.1f} before" for speed, was in regressions]


def main() -> int:
    parser = argparse.ArgumentParser(description="How long packproof takes, in units of importing torch and triton.")
    parser.add_argument("checks", nargs="*", metavar="NAME", help=f"one of {', '.join(CHECKS)}; default: all")
    parser.add_argument("--museum", action="store_true", help="also the time to the first failure of its entries")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--compare", type=Path, help="a file written by --json; exit 1 if something is slower now")
    arguments = parser.parse_args()
    speeds = []
    if unknown := [name for name in arguments.checks if name not in CHECKS]:
        parser.error(f"NAME: {', '.join(unknown)} came but one of {', '.join(CHECKS)} was expected")
    for speed in measure(arguments.checks or tuple(CHECKS), starts=not arguments.checks, museum=arguments.museum):
        print(f"{speed.name:<44} {speed.seconds:7.1f} s ({speed.clock:<4}) {speed.units:7.2f}", flush=True)
        speeds.append(speed)
    if arguments.json:
        arguments.json.write_text(json.dumps(to_row(speeds), indent=1) + "\n")
    lines = find_slower(speeds, read_speeds(arguments.compare)) if arguments.compare else []
    for line in lines:
        print(f"SLOWER: {line}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
