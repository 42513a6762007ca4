"""The command on one rank: it judges and times the ops, and writes the file."""

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
    """The ops, cases and tokens of one bench on ranks."""

    cases: int | None = None
    """Cases to judge for each op and dtype; None for a number that suits the device."""
    tokens: int | None = None
    """Tokens of the timed packs; None for a number that suits the device."""
    op: str | None = None
    """The only op, or None for all."""
    json: Path | None = None
    """A file to write."""

    @property
    def ops(self) -> tuple[str, ...]:
        return (self.op,) if self.op else OPS

    def require_ops(self) -> None:
        """UsageError for an op without a version on ranks."""
        if self.op is not None and self.op not in OPS:
            raise UsageError(f"--op: {self.op} is not among the ops on ranks: {', '.join(OPS)}")


def simulated_here(ranks: int) -> OnRanks:
    """Ranks simulated in this process, on a GPU if there is one."""
    return OnRanks(ranks, "cuda" if torch.cuda.is_available() else "cpu")


def run(request: RanksRequest, place: OnRanks, say: Callable[[str], None]) -> int:
    """Judge the ops, and time them on real ranks.

    Returns the number of failed cases, the same on each rank. Only the first rank writes.
    """
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
    """The lines of all ranks."""
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
