"""The command on one rank: it judges and times the ops, and writes the file."""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from packproof.base.environment import environment
from packproof.base.errors import UsageError
from packproof.base.files import replace_text
from packproof.base.records import to_row
from packproof.base.wording import plural
from packproof.bench.ranks.blocks import split_block
from packproof.bench.ranks.judge import RankGroup, judge_op
from packproof.bench.ranks.ours import OPS
from packproof.bench.ranks.row import OpJudgement, RanksDocument, Row
from packproof.bench.ranks.timing import CPU_TOKENS, GPU_TOKENS, divides_groups, table, timed_rows
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


def simulated_ranks(ranks: int) -> RankGroup:
    """Ranks simulated in this process, on a GPU if there is one."""
    return RankGroup(ranks, "cuda" if torch.cuda.is_available() else "cpu")


def run(request: RanksRequest, rank_group: RankGroup, write_line: Callable[[str], None]) -> int:
    """Judge the ops, and time them on real ranks.

    Returns the number of failed cases, the same on each rank. Only the first rank writes.
    """
    machine = environment(rank_group.device.partition(":")[0])
    simulated_text = " simulated" if rank_group.group is None else ""
    write_on_first_rank = write_line if rank_group.rank == 0 else lambda _: None
    write_on_first_rank(f"{rank_group.ranks}{simulated_text} ranks on {machine.name}, torch {machine.torch}")
    if not rank_group.on_gpu:
        write_on_first_rank("small packs on a CPU, computed by the references: nothing here is about speed")
    verdicts = _judge_ops(request, rank_group, write_on_first_rank)
    failures, rows = [line for verdict in verdicts for line in verdict.failed], list[Row]()
    if rank_group.group is not None:
        lines = _gather_lines(split_block(rank_group), rank_group) if divides_groups(rank_group) else []
        difference_count = (
            plural(len(lines), "difference") if divides_groups(rank_group) else "the ranks do not divide its groups"
        )
        write_on_first_rank(f"tensor-parallel Mamba-2, values and gradients beside one rank: {difference_count}")
        failures += lines
        for row in timed_rows(
            request.ops, request.tokens or (GPU_TOKENS if rank_group.on_gpu else CPU_TOKENS), rank_group
        ):
            rows.append(row)
            _write(request, rank_group, verdicts, rows, lines)
        write_on_first_rank(table(rows))
    for line in failures:
        write_on_first_rank(f"    {line}")
    _write(request, rank_group, verdicts, rows, failures)
    return len(failures)


def _judge_ops(request: RanksRequest, rank_group: RankGroup, write_line: Callable[[str], None]) -> list[OpJudgement]:
    count = (GPU_CASES if rank_group.on_gpu else CPU_CASES) if request.cases is None else request.cases
    verdicts = []
    for op in request.ops if count else ():
        for dtype in DTYPES:
            verdicts.append(judge_op(op, dtype, count, rank_group))
            write_line(str(verdicts[-1]))
    return verdicts


def _gather_lines(lines: list[str], rank_group: RankGroup) -> list[str]:
    """The lines of all ranks."""
    lines_by_rank = [lines] * rank_group.ranks
    dist.all_gather_object(lines_by_rank, lines, group=rank_group.group)
    return [line for rank_lines in lines_by_rank for line in rank_lines]


def _write(
    request: RanksRequest, rank_group: RankGroup, verdicts: list[OpJudgement], rows: list[Row], failures: list[str]
) -> None:
    if request.json is None or rank_group.rank:
        return
    machine = environment(rank_group.device.partition(":")[0])
    document = RanksDocument(
        __version__,
        shlex.join(["packproof", *sys.argv[1:]]),
        machine.name,
        machine,
        rank_group.ranks,
        tuple(verdicts),
        tuple(failures),
        tuple(rows),
    )
    replace_text(request.json, json.dumps(to_row(document), indent=1) + "\n")
