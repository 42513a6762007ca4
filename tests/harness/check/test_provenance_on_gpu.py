"""Who computed on a GPU: launches of Triton and of cuda.core by their calls, others by CUPTI.

python -m pytest -q tests/harness/check/test_provenance_on_gpu.py
"""

import os
from functools import cache

import pytest
import torch

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import RunFinished, Verdict

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

_KERNELS = "tests.harness.check.provenance_kernels"
_DRIVER = "tests.harness.check.cuda_kernels"


@cache
def verdicts(target: str, op: str | None = None, *, only_own_kernels: bool = False) -> tuple[Verdict, ...]:
    request = CheckRequest(
        target,
        op=op or f"{_KERNELS}:PRODUCT",
        device="cuda",
        dtypes=("float32",),
        properties=("reference",),
        profile="quick",
        questions=False,
        only_own_kernels=only_own_kernels,
        replay_dir=os.devnull,
    )
    [end] = [event for event in run_check(request) if isinstance(event, RunFinished)]
    return end.verdicts


def computed(target: str, op: str | None = None) -> set[tuple[str, str, str, bool]]:
    return {(c.kind, c.name.rpartition(".")[2], c.during, c.is_own) for c in verdicts(target, op)[-1].computed}


def statuses(target: str, op: str | None = None, *, only_own_kernels: bool = False) -> dict[str, str]:
    return {v.cell.property: v.status for v in verdicts(target, op, only_own_kernels=only_own_kernels)}


def test_triton_launches_and_operators_are_named() -> None:
    assert computed(f"{_KERNELS}:torch_backward") == {
        ("triton", "_product_kernel", "forward", True),
        ("torch", "aten::mul", "backward", False),
        ("torch", "aten::sum", "backward", False),
    }


def test_a_launch_that_does_nothing_is_a_failure() -> None:
    assert statuses(f"{_KERNELS}:idle_launch") == {"provenance": "failed", "reference": "passed"}


@pytest.mark.parametrize("kernel", ["own_kernels", "torch_backward", "tuned", "reused_workspace", "in_torch"])
def test_correct_kernels_pass(kernel: str) -> None:
    assert statuses(f"{_KERNELS}:{kernel}") == {"reference": "passed"}


def test_only_own_kernels() -> None:
    assert statuses(f"{_KERNELS}:own_kernels", only_own_kernels=True) == {"reference": "passed"}
    assert statuses(f"{_KERNELS}:torch_backward", only_own_kernels=True)["provenance"] == "failed"


def test_kernels_of_cuda_core_are_named_and_make_the_output() -> None:
    pytest.importorskip("cuda.core")
    conv = "packproof.kernels.causal_conv1d:causal_conv1d"
    assert statuses(conv, "causal_conv1d") == {"reference": "passed"}
    assert {(kind, during) for kind, _, during, own in computed(conv, "causal_conv1d") if own} >= {
        ("cuda", "forward"),
        ("cuda", "backward"),
    }


def test_a_kernel_launched_through_the_driver_is_named_by_cupti() -> None:
    assert ("extension", "product_kernel", "forward", True) in computed(f"{_DRIVER}:through_the_driver")
    assert statuses(f"{_DRIVER}:through_the_driver") == {"reference": "passed"}
