"""What the walls around a kernel cost.

    python -m packproof.proof.wall_cost [NAME] [--turns 5]

NAME is one of `speed.CHECKS`. The same check is run without walls, with those that the system allows, and with all of
them required, in turns: a machine that gets busier meanwhile slows all three. The figures are medians, and the ratios
those of the same turn.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from packproof.proof.speed import CHECKS

_USUAL = "as usual"
WAYS = {"--no-isolate": ("--no-isolate",), _USUAL: (), "--isolate": ("--isolate",)}
_MOST = 1.1  # times the cost without walls
_LIMIT = 600.0


@dataclass(frozen=True)
class CheckCost:
    """Of one run of a check."""

    cpu: float
    """CPU seconds of all its processes."""
    wall: float
    """Seconds by the clock."""


def measure(check: str, turns: int) -> dict[str, list[CheckCost]]:
    """The costs of a check in each of `WAYS`, one for each turn. Raises RuntimeError if it does not pass."""
    with tempfile.TemporaryDirectory() as folder:
        costs: dict[str, list[CheckCost]] = {way: [] for way in WAYS}
        for turn in range(turns + 1):
            for way, options in WAYS.items():
                cost = _cost_of([*CHECKS[check], "--device", "cpu", *options], folder)
                if turn:  # the first one fills caches
                    costs[way].append(cost)
        return costs


def _cost_of(arguments: Sequence[str], folder: str) -> CheckCost:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "packproof", "check", *arguments]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=False)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        text = f"{process.stdout[-2000:]}{process.stderr[-500:]}"
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}:\n{text}")
    return CheckCost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def median_ratio(costs: Sequence[CheckCost], costs_without: Sequence[CheckCost], name: str) -> float:
    """The median, over turns, of the costs with walls as multiples of those without; `name` is "cpu" or "wall"."""
    pairs = zip(costs, costs_without, strict=True)
    return statistics.median(float(getattr(cost, name) / getattr(without, name)) for cost, without in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description="What the walls around a kernel cost; exit code 1 beyond 1.1 times.")
    parser.add_argument("check", nargs="?", choices=[*CHECKS], default="triton-conv-quick")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    costs = measure(arguments.check, arguments.turns)
    without, ratios = costs["--no-isolate"], list[float]()
    for way, way_costs in costs.items():
        cpu, wall = (statistics.median(getattr(cost, name) for cost in way_costs) for name in ("cpu", "wall"))
        ratios += [median_ratio(way_costs, without, name) for name in ("cpu", "wall")]
        print(f"{way:<14} CPU {cpu:6.2f} s, {ratios[-2]:.2f} x   wall {wall:6.2f} s, {ratios[-1]:.2f} x")
    return int(max(ratios) > _MOST)


if __name__ == "__main__":
    sys.exit(main())
