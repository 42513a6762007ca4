"""ssd.cu: why it cannot run; interpreted_ssd_cuda.py has its logic."""

import pytest
import torch

from packproof.kernels import ssd_cuda_launch


@pytest.mark.parametrize(
    ("x", "B", "dtype", "reason"),
    [
        ((2, 64), (1, 64), torch.float32, "x is float32 and it computes in bfloat16"),
        ((2, 32), (1, 64), torch.bfloat16, "x has 32 channels a head and it takes 64"),
        ((2, 64), (1, 16), torch.bfloat16, "B has 16 states and it takes 64 or 128"),
        ((2, 64), (2, 64), torch.bfloat16, "a group has 1 head and it takes at least 2"),
        ((2, 64), (1, 128), torch.bfloat16, "it needs an NVIDIA GPU and the tensors are on cpu"),
    ],
)
def test_why_it_cannot_run(x: tuple[int, int], B: tuple[int, int], dtype: torch.dtype, reason: str) -> None:
    assert ssd_cuda_launch.refusal(torch.ones(3, *x, dtype=dtype), torch.ones(3, *B, dtype=dtype)) == reason
