"""On real ranks, processes with a group: the ops of packproof.parallel, and what is said of a lost rank."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.processes import CASES, JUDGED_OPS
from tests.test_docs import ROOT

GROUPS = ("judged on 4=4", "dies watched=3", "hangs watched=3", "dies=3")


pytestmark = pytest.mark.proof  # the groups of processes take a quarter of a minute


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each rank of each group found, None of a rank that was lost."""
    return run_groups(tmp_path_factory.mktemp("ranks"), GROUPS)


@pytest.fixture(scope="module")
def found_of_others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run_groups(tmp_path_factory.mktemp("others"), ["judged on 2=2", "others on 4=4"])


def run_groups(folder: Path, group_lines: Sequence[str]) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.processes", str(folder), *group_lines],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def of(name: str, rank: int) -> Any:
        path = Path(folder / f"{name}.{rank}.json")
        return json.loads(path.read_text()) if path.exists() else None

    groups = dict(group.split("=") for group in group_lines)
    return {name: [of(name, rank) for rank in range(int(ranks))] for name, ranks in groups.items()}


@pytest.mark.parametrize("op", JUDGED_OPS["judged on 4"])
def test_an_op_on_processes_has_the_values_and_gradients_of_one(found: dict[str, list[Any]], op: str) -> None:
    require_equal(found["judged on 4"], op)


@pytest.mark.parametrize(
    ("op", "group"), [(op, group) for group in ("judged on 2", "others on 4") for op in JUDGED_OPS[group]]
)
def test_an_op_on_other_processes_has_the_values_and_gradients_of_one(
    found_of_others: dict[str, list[Any]], op: str, group: str
) -> None:
    require_equal(found_of_others[group], op)


def require_equal(ranks: list[Any], op: str) -> None:
    first = ranks[0]
    judged, on_cpu = first[op], first["device"] == "cpu"
    assert (judged["cases"], judged["failed"]) == (CASES, [])
    assert judged["compared"] > 0
    has_bits = len(ranks) == 2 and "attention" not in op and "zig-zag" not in op
    assert not on_cpu or (judged["bitwise"] > 0) == has_bits


def test_a_block_split_over_processes_is_the_whole_one(found: dict[str, list[Any]]) -> None:
    assert [each["tensor parallel"] for each in found["judged on 4"]] == [[]] * 4


def test_a_block_split_over_two_processes_is_the_whole_one(found_of_others: dict[str, list[Any]]) -> None:
    assert [each["tensor parallel"] for each in found_of_others["judged on 2"]] == [[]] * 2


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_a_lost_rank_is_named_in_time(found: dict[str, list[Any]], how: str) -> None:
    for rank in (0, 2):
        told = found[f"{how} watched"][rank]
        assert told["error"] == (
            f"rank {rank} of 3, exchange 2, tokens before a cut of causal_conv1d, forward: rank 1 did not come "
            "(last seen at: exchange 1, states of ssd, forward) within 2 s"
        )
        assert told["seconds"] < 4


def test_without_a_watch_gloo_sees_a_rank_that_dies(found: dict[str, list[Any]]) -> None:
    told = [found["dies"][rank] for rank in (0, 2)]
    assert any(
        "exchange of tokens before a cut of causal_conv1d, forward: another rank is gone" in t["error"] for t in told
    )
