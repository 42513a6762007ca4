"""For tests/ops/test_delta.py of flash-linear-attention: gradients from a state that needs none."""

import pytest
import torch
import torch.nn.functional as F
from fla.ops.delta_rule import fused_recurrent_delta_rule
from fla.utils import assert_close, device


@pytest.mark.parametrize(
    ("cu_seqlens", "H", "D"),
    [
        pytest.param(*test, id="cu_seqlens{}-H{}-D{}".format(*test))
        for test in [([0, 5], 1, 32), ([0, 3, 9, 16], 2, 64)]
    ],
)
def test_fused_recurrent_varlen_from_a_detached_state(cu_seqlens: list[int], H: int, D: int):
    torch.manual_seed(42)
    T = cu_seqlens[-1]
    q, k, v = (torch.randn(1, T, H, D, device=device).requires_grad_() for _ in range(3))
    beta = torch.rand(1, T, H, device=device).requires_grad_()
    h0 = torch.randn(len(cu_seqlens) - 1, H, D, D, device=device)
    cu_seqlens = torch.tensor(cu_seqlens, device=device)
    do = torch.randn_like(v)

    gradients = []
    for requires_grad in (True, False):
        o, _ = fused_recurrent_delta_rule(
            q,
            F.normalize(k, p=2, dim=-1),
            v,
            beta,
            initial_state=h0.clone().requires_grad_(requires_grad),
            cu_seqlens=cu_seqlens,
        )
        gradients.append(torch.autograd.grad((o * do).sum(), (q, k, v, beta)))

    for name, ref, tri in zip(("dq", "dk", "dv", "db"), *gradients, strict=True):
        assert_close(name, ref, tri, 1e-6)
