"""Blocks of packproof's kernels, interpreted, train on a pack as on its sequences one by one.

In `make proof`, and in fp32: bf16 takes minutes here, and is trained on a GPU.
"""

import pytest
import torch

from packproof import kernels
from packproof.interpreter import repair
from tests.integration.small import LENGTHS, WIDTH, small
from tests.integration.training import STEPS, Task, excess

repair.install()
LONG = [pytest.param(block, STEPS, marks=pytest.mark.proof) for block in ("mamba", "mamba2")]


@pytest.mark.parametrize(("block", "steps"), LONG)
def test_interpreted_kernels_train_alike(block: str, steps: int) -> None:
    assert excess(small(block, kernels), Task.of(LENGTHS, WIDTH, torch.float32), steps=steps) <= 1
