"""The seeded races within a block are races, and the kernels without them are correct: by the emulator, on a CPU."""

import shutil

import pytest
import torch

from tests.kernels.emulator import compile as emulator
from tests.kernels.races.bug import whole_numbers
from tests.kernels.races.cuda_bugs import STEP_KERNELS, STEPS, StepKernel, path_and_macros

pytestmark = [
    pytest.mark.proof,  # g++ takes two seconds for each
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]
BLOCKS = 2
KERNELS = [kernel for kernel in STEP_KERNELS if kernel.file == "blocks.cu"]  # a thread that spins ends no other here


def launch(kernel: StepKernel, bug: str) -> torch.Tensor:
    x = whole_numbers((BLOCKS, STEPS, kernel.per_step), torch.device("cpu"))
    y = torch.full((BLOCKS * kernel.per_block,), torch.nan)
    kernels = emulator.Emulated(*path_and_macros(kernel.file, bug))
    kernels.launch(kernel.name, BLOCKS, kernel.threads, 0, {"y": y, "x": x, "steps": STEPS})
    return y


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_without_the_bug_nothing_is_undefined(kernel: StepKernel) -> None:
    assert launch(kernel, "NONE").isfinite().all()


@pytest.mark.parametrize(("kernel", "bug"), [(kernel, bug) for kernel in KERNELS for bug in kernel.bugs])
def test_with_the_bug_what_it_reads_is_undefined(kernel: StepKernel, bug: str) -> None:
    with pytest.raises(emulator.Violation, match=r"without a barrier|still fills|in flight reads"):
        launch(kernel, bug)
