"""For tests/ops/triton/test_selective_state_update.py of mamba: steps of channels that hardly forget."""

import pytest
import torch
from mamba_ssm.ops.triton.selective_state_update import selective_state_update, selective_state_update_ref

device = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("bias", [-4.0, -8.0, -12.0, -15.0, -17.0])
def test_selective_state_update_of_small_steps(bias):
    torch.random.manual_seed(0)
    batch_size, dim, dstate = 1, 8, 4
    x = torch.randn(batch_size, dim, device=device)
    dt, dt_bias = torch.zeros(batch_size, dim, device=device), torch.full((dim,), bias, device=device)
    A = -torch.rand(dim, dstate, device=device) - 1.0
    B, C = (torch.randn(batch_size, dstate, device=device) for _ in range(2))
    D = torch.zeros(dim, device=device)
    state, state_ref = (torch.zeros(batch_size, dim, dstate, device=device) for _ in range(2))

    selective_state_update(state, x, dt, A, B, C, D, dt_bias=dt_bias, dt_softplus=True)
    selective_state_update_ref(state_ref, x, dt, A, B, C, D, dt_bias=dt_bias, dt_softplus=True)
    torch.testing.assert_close(state, state_ref, rtol=1e-4, atol=0)
