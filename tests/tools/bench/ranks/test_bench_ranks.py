"""`packproof bench ranks`: what it judges, times and writes, and what it says of a rank that is lost."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from packproof import parallel
from packproof.bench.ranks import command, judge
from packproof.bench.ranks.blocks import split_block
from packproof.bench.ranks.judge import RankGroup
from packproof.cli import ending, main
from tests.in_process import environment
from tests.parallel.own import own
from tests.test_docs import ROOT

COMMAND = [sys.executable, "-m", "packproof", "bench", "ranks", "--ranks", "2"]
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


@pytest.mark.proof
def test_two_ranks_judge_and_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ranks.json"
    line = "bench ranks --ranks 2 --op causal_conv1d --cases 1 --tokens 24 --json"
    with environment(**WITHOUT_GPU):
        assert main.run([*line.split(), str(file)]) == ending.SUCCESS
    assert "nothing here is about speed" in capfd.readouterr().out
    found = json.loads(file.read_text())
    assert [(v["op"], v["dtype"], v["cases"], v["failed"]) for v in found["judged"]] == [
        ("causal_conv1d", dtype, 1, []) for dtype in ("float32", "bfloat16")
    ]
    rows = {(row["op"], row["layout"]): row for row in found["rows"]}
    assert [*rows] == [
        *(("causal_conv1d", layout) for layout in ("one document", "many documents")),
        ("mamba2", "one document"),
    ]
    row = rows["causal_conv1d", "one document"]
    assert (row["ranks"], row["tokens"], [*row["parts"]]) == (2, 24, ["rank", "two all-gathers"])
    assert all(ms > 0 for ms in (row["one"], row["all"], *row["parts"].values()))


def test_a_wrong_op_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "simulated_ranks", lambda ranks: RankGroup(ranks, "cpu"))
    monkeypatch.setattr(judge, "parallel_kernel", lambda op, *_: own(op, "halo from the wrong side"))
    assert main.run(["bench", "ranks", "--simulated", "2", "--op", "causal_conv1d", "--cases", "4"]) == ending.FAILED
    said = capsys.readouterr().out
    assert re.search(
        r"partition causal_conv1d float32: 4 cases, \d+ compared, \d+ of them bit for bit, [1-4] failed", said
    )
    assert re.search(r"causal_conv1d lengths \[.+on rank \d: got .+, over ranks ", said)


def test_a_block_whose_ranks_are_not_summed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def differences(group: Any) -> list[str]:
        return split_block(RankGroup(2, "cpu", group))

    assert parallel.run_ranks(2, differences) == [[], []]
    monkeypatch.setattr("packproof.parallel.mamba2._copy_to_ranks", lambda u, _: u)
    for rank, lines in enumerate(parallel.run_ranks(2, differences)):
        assert [line.partition(":")[0] for line in lines] == [f"rank {rank}, u"]


@pytest.mark.proof
def test_a_rank_that_is_killed_ends_the_others() -> None:
    line = [*COMMAND, "--op", "rope", "--cases", "400", "--seconds", "10"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(line, env={**os.environ, **WITHOUT_GPU}, **pipes)
    assert running.stdout is not None
    running.stdout.readline()
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    [second] = [pid for pid in children if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    begin = time.monotonic()
    os.kill(int(second), signal.SIGKILL)
    _, told = running.communicate(timeout=60)
    assert (running.returncode, time.monotonic() - begin < 30) == (ending.INCONCLUSIVE, True), told
    assert re.search(
        r"packproof: rank 0 of 2, exchange \d+, .+: rank 1 did not come \(last seen at: .+\) within 10 s", told
    )
    assert "packproof: rank 1 of 2 was ended by SIGKILL" in told
