"""Who computed on a GPU: launches of Triton and of cuda.core by their calls, others by CUPTI.

python -m pytest -q tests/harness/check/test_provenance_on_gpu.py
"""

import pytest
import torch

from packproof.harness.report.events import Verdict
from tests.harness.check.traced_checks import KERNELS, computed_of, traced

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

_DRIVER = "tests.harness.check.cuda_kernels"


def verdicts(target: str, op: str = f"{KERNELS}:PRODUCT", *, only_own_kernels: bool = False) -> tuple[Verdict, ...]:
    return traced(target, op, device="cuda", only_own_kernels=only_own_kernels)


def computed(target: str, op: str = f"{KERNELS}:PRODUCT") -> set[tuple[str, str, str, bool]]:
    return computed_of(verdicts(target, op))


def statuses(target: str, op: str = f"{KERNELS}:PRODUCT", *, only_own_kernels: bool = False) -> dict[str, str]:
    return {v.cell.property: v.status for v in verdicts(target, op, only_own_kernels=only_own_kernels)}


def test_triton_launches_and_operators_are_named() -> None:
    assert computed(f"{KERNELS}:torch_backward") == {
        ("triton", "_product_kernel", "forward", True),
        ("torch", "aten::mul", "backward", False),
        ("torch", "aten::sum", "backward", False),
    }


def test_a_launch_that_does_nothing_is_a_failure() -> None:
    assert statuses(f"{KERNELS}:idle_launch") == {"provenance": "failed", "reference": "passed"}


@pytest.mark.parametrize("kernel", ["own_kernels", "torch_backward", "tuned", "reused_workspace", "in_torch"])
def test_correct_kernels_pass(kernel: str) -> None:
    assert statuses(f"{KERNELS}:{kernel}") == {"reference": "passed"}


def test_only_own_kernels() -> None:
    assert statuses(f"{KERNELS}:own_kernels", only_own_kernels=True) == {"reference": "passed"}
    assert statuses(f"{KERNELS}:torch_backward", only_own_kernels=True)["provenance"] == "failed"


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
