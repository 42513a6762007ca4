"""Over many seeds, and in every mode and precision: no correct hybrid is called leaking, and no leak is missed."""

from collections.abc import Callable

import pytest
from torch import nn

from packproof.harness.report.events import RunFinished
from packproof.models.check import run_module_check
from packproof.models.request import module_request
from tests.tools.models.models import SSD, Attention, Conv, Hybrid, Scan, ScanWithLeakyBackward, dropped_in

MODES = ("eval", "train", "checkpointing")
SEEDS, FEW = range(50), range(5)


def statuses(make: Callable[[], nn.Module], seed: int, dtype: str) -> dict[str, set[str]]:
    """By property, over all modes."""
    request = module_request(
        make, convention="cu_seqlens", profile="quick", records=False, seed=seed, modes=MODES, dtypes=(dtype,)
    )
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    found: dict[str, set[str]] = {}
    for verdict in end.verdicts:
        found.setdefault(verdict.cell.property, set()).add(f"{verdict.status} {verdict.reason}".strip())
    return found


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_hybrid_never_fails(seed: int, dtype: str) -> None:
    found = statuses(Hybrid, seed, dtype)
    assert {status.split()[0] for each in found.values() for status in each} == {"passed"}, found


PLANTED: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: dropped_in(0),
    "scan": lambda: dropped_in(1),
    "ssd": lambda: dropped_in(2),
    "attention": lambda: dropped_in(3),
    "one of four": lambda: dropped_in(2, [Attention] * 4),
    "backward": lambda: Hybrid(mixers=(Conv, ScanWithLeakyBackward, SSD, Attention)),
    "scans alone": lambda: dropped_in(1, [Scan] * 2),
}


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_leak_is_never_missed(name: str, seed: int, dtype: str) -> None:
    assert statuses(PLANTED[name], seed, dtype)["isolation"] == {"failed"}
