"""causal_conv1d.cu: why it cannot run; interpreted_causal_conv1d_cuda.py has its logic."""

import pytest
import torch

from packproof.kernels import causal_conv1d_launch


@pytest.mark.parametrize(
    ("dtype", "width", "reason"),
    [
        (torch.float64, 4, "x is float64 and it computes in float32"),
        (torch.bfloat16, 5, "weight has 5 taps and it takes 2 to 4"),
        (torch.bfloat16, 4, "it needs an NVIDIA GPU and the tensors are on cpu"),
    ],
)
def test_why_it_cannot_run(dtype: torch.dtype, width: int, reason: str) -> None:
    x, weight = torch.ones(3, 2, dtype=dtype), torch.ones(2, width, dtype=dtype)
    assert causal_conv1d_launch.refusal(x, weight) == reason
