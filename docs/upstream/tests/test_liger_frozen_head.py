"""For test/transformers/test_fused_linear_cross_entropy.py of Liger-Kernel: a head is trained above frozen layers."""

import pytest
import torch
import torch.nn.functional as F
from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
from liger_kernel.utils import infer_device

device = infer_device()


@pytest.mark.parametrize("B, T, H, V", [(2, 4, 16, 32), (1, 7, 24, 37)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_of_a_head_whose_input_is_frozen(B, T, H, V, reduction, has_bias):
    torch.manual_seed(0)
    x = torch.randn(B * T, H, device=device)
    weight = torch.randn(V, H, device=device)
    bias = torch.randn(V, device=device) if has_bias else None
    target = torch.randint(0, V, (B * T,), device=device)
    parameters = [weight, bias] if has_bias else [weight]

    expected = [p.clone().requires_grad_() for p in parameters]
    F.cross_entropy(F.linear(x, *expected), target, reduction=reduction).sum().backward()
    actual = [p.clone().requires_grad_() for p in parameters]
    liger_fused_linear_cross_entropy(
        x, actual[0], target, actual[1] if has_bias else None, reduction=reduction
    ).sum().backward()

    for p, q in zip(actual, expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4)
