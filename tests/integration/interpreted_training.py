"""Blocks of packproof's kernels, interpreted, train on a pack as on its sequences one by one.

In fp32: bf16 takes minutes here, and is trained on a GPU.
"""

import pytest
import torch

from packproof import kernels
from packproof.harness.interpreter import repair
from tests.integration.small import LENGTHS, WIDTH, small
from tests.integration.training import Task, excess

repair.install()


@pytest.mark.parametrize("block", [pytest.param("mamba", marks=pytest.mark.proof), "mamba2"])
def test_interpreted_kernels_train_alike(block: str) -> None:
    assert excess(small(block, kernels), Task.of(LENGTHS, WIDTH, torch.float32)) <= 1
