"""The command: what a rank judges and times, and the file of it."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from packproof.harness.bench.ranks.blocks import split_block
from packproof.harness.bench.ranks.judge import JudgedOp, OnRanks, judged
from packproof.harness.bench.ranks.ours import OPS
from packproof.harness.bench.ranks.row import Row
from packproof.harness.bench.ranks.timing import CPU_TOKENS, GPU_TOKENS, splits, table, timed
from packproof.harness.results.environment import environment
from packproof.harness.results.files import replace_text
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted
from packproof.version import __version__

GPU_CASES, CPU_CASES = 50, 5
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class RanksRequest:
    """cases: that are judged of each op and dtype; tokens: of the packs that are timed; None: what fits the device.
    op: the only one, or None for all. json: a file to write."""

    cases: int | None = None
    tokens: int | None = None
    op: str | None = None
    json: Path | None = None

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.op,) if self.op else OPS

    def require_ops(self) -> None:
        """UsageError for an op that is not on ranks."""
        if self.op is not None and self.op not in OPS:
            raise UsageError(f"--op: {self.op} is not among the ops on ranks: {', '.join(OPS)}")


def simulated_here(ranks: int) -> OnRanks:
    """Ranks simulated in this process, on a GPU where there is one."""
    return OnRanks(ranks, "cuda" if torch.cuda.is_available() else "cpu")


def run(request: RanksRequest, place: OnRanks, say: Callable[[str], None]) -> int:
    """Judge, and on real ranks time. Returns how many cases failed, the same on each rank; the first one writes."""
    here = environment(place.device.partition(":")[0])
    simulated = " simulated" if place.group is None else ""
    said = say if place.rank == 0 else lambda _: None
    said(f"{place.ranks}{simulated} ranks on {here.name}, torch {here.torch}")
    if not place.on_gpu:
        said("small packs on a CPU, computed by the references: nothing here is about speed")
    verdicts = _judged(request, place, said)
    failed, rows = [line for verdict in verdicts for line in verdict.failed], list[Row]()
    if place.group is not None:
        lines = _everywhere(split_block(place), place) if splits(place) else []
        compared = counted(len(lines), "difference") if splits(place) else "the ranks do not divide its groups"
        said(f"tensor-parallel Mamba-2, values and gradients beside one rank: {compared}")
        failed += lines
        for row in timed(request.ops, request.tokens or (GPU_TOKENS if place.on_gpu else CPU_TOKENS), place):
            rows.append(row)
            _write(request, place, verdicts, rows, lines)
        said(table(rows))
    for line in failed:
        said(f"    {line}")
    _write(request, place, verdicts, rows, failed)
    return len(failed)


def _judged(request: RanksRequest, place: OnRanks, said: Callable[[str], None]) -> list[JudgedOp]:
    count = (GPU_CASES if place.on_gpu else CPU_CASES) if request.cases is None else request.cases
    verdicts = []
    for op in request.ops if count else ():
        for dtype in DTYPES:
            verdicts.append(judged(op, dtype, count, place))
            said(str(verdicts[-1]))
    return verdicts


def _everywhere(lines: list[str], place: OnRanks) -> list[str]:
    """Those of all ranks."""
    found = [lines] * place.ranks
    dist.all_gather_object(found, lines, group=place.group)
    return [line for each in found for line in each]


def _write(request: RanksRequest, place: OnRanks, verdicts: list[JudgedOp], rows: list[Row], failed: list[str]) -> None:
    if request.json is None or place.rank:
        return
    here = environment(place.device.partition(":")[0])
    document = {
        "packproof": __version__,
        "command": shlex.join(["packproof", *sys.argv[1:]]),
        "device": here.name,
        "environment": asdict(here),
        "ranks": place.ranks,
        "judged": [asdict(verdict) for verdict in verdicts],
        "failed": failed,
        "rows": [asdict(row) for row in rows],
    }
    replace_text(request.json, json.dumps(document, indent=1) + "\n")
