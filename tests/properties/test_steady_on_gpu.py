"""The steady property on a GPU, where compilations, waits and memory are the device's own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from packproof import museum
from packproof.harness.process.worker import Worker
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import CAUSAL_CONV1D
from packproof.properties.steadiness.law import STEADY
from tests.properties.wrong import capturable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEADILY = Promises(steady=True)
SLOW = [entry.kernel for entry in museum.entries().values() if entry.bug_class == "new-layouts"]
QUICK = [control.kernel for control in museum.controls().values() if control.id.startswith("new_layouts.")]
OWN = ["packproof.kernels.causal_conv1d:causal_conv1d_triton", "packproof.kernels.causal_conv1d:causal_conv1d"]


def by_a_stream(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Waits for the stream, as a compiled extension may."""
    y = capturable(x, weight, cu_seqlens=cu_seqlens)
    torch.cuda.current_stream().synchronize()
    return y


def by_the_device(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Waits for the device."""
    y = capturable(x, weight, cu_seqlens=cu_seqlens)
    torch.cuda.synchronize()
    return y


def violations(kernel_name: str) -> list[Violation]:
    with Worker(kernel_name, "cuda", time_limit=120) as worker:
        parameters = frozenset(worker.describe()["parameters"])
        space = Space(CAUSAL_CONV1D, "float32", STEADILY, parameters, on_gpu=True)
        kernel = KernelUnderTest(CAUSAL_CONV1D, worker, STEADILY)
        found = [first_violation(kernel, STEADY, case) for case in STEADY.suited(space, [])]
    return [violation for violation in found if violation is not None]


@pytest.mark.parametrize("kernel", SLOW)
def test_each_kernel_that_is_slow_with_new_layouts_fails(kernel: str) -> None:
    [first, *_] = violations(kernel)
    assert first.text.startswith(("reads", "compiles", "tunes", "keeps"))


@pytest.mark.parametrize("kernel", [*QUICK, *OWN, f"{Path(__file__).with_name('wrong.py')}:capturable"])
def test_others_pass(kernel: str) -> None:
    assert violations(kernel) == []


@pytest.mark.parametrize(
    ("name", "call"), [("by_a_stream", "cudaStreamSynchronize"), ("by_the_device", "cudaDeviceSynchronize")]
)
def test_a_wait_that_no_operator_of_torch_makes_is_seen(name: str, call: str) -> None:
    [first, *_] = violations(f"{__file__}:{name}")
    assert first.text == f"reads by {call}"
