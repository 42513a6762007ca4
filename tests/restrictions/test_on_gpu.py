"""On a GPU a launch counts as computing: what is raised after one is not a refusal."""

from pathlib import Path

import pytest
import torch

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished
from tests.sweeps import sweep

KERNELS = Path(__file__).parent / "gpu_kernels.py"


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    ],
)
@pytest.mark.usefixtures("working_folder")
@sweep("name, status, domain", [("late", "failed", ())], [("checked", "passed", ("d % 8 == 0",))])
def test_a_check_before_the_launch_is_a_refusal_and_one_after_it_is_not(
    name: str, status: str, domain: tuple[str, ...], device: str
) -> None:
    request = CheckRequest(
        f"{KERNELS}:{name}", device=device, dtypes=("float32",), properties=("reference", "causality"), profile="quick"
    )
    verdicts = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    counting = [v for v in verdicts if v.cell.counts]
    assert [v.status for v in counting] == [status, status]
    assert all(v.domain == domain for v in counting)
