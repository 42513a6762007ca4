"""causal_conv1d.cu: why it cannot run; interpreted_causal_conv1d_cuda.py has its logic."""

import pytest
import torch

from packproof.kernels import causal_conv1d_launch


@pytest.mark.parametrize(
    ("dtype", "width", "states", "reason"),
    [
        (torch.float64, 4, None, "x is float64 and it computes in float32"),
        (torch.bfloat16, 5, None, "weight has 5 taps and it takes 2 to 4"),
        (torch.bfloat16, 4, torch.float32, "initial_states is float32 and x is bfloat16"),
        (torch.bfloat16, 4, torch.bfloat16, "it needs an NVIDIA GPU and the tensors are on cpu"),
    ],
)
def test_why_it_cannot_run(dtype: torch.dtype, width: int, states: torch.dtype | None, reason: str) -> None:
    x, weight = torch.ones(3, 2, dtype=dtype), torch.ones(2, width, dtype=dtype)
    initial_states = None if states is None else torch.ones(1, 2, width - 1, dtype=states)
    assert causal_conv1d_launch.refusal(x, weight, initial_states) == reason
