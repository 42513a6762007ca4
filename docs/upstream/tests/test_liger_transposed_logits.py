"""For test/transformers/test_cross_entropy.py of Liger-Kernel: logits that are a view of (vocabulary, tokens)."""

import pytest
import torch
import torch.nn.functional as F
from liger_kernel.transformers.functional import liger_cross_entropy
from liger_kernel.utils import infer_device

device = infer_device()


@pytest.mark.parametrize("B, T, V", [(2, 4, 32), (1, 7, 37)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_logits_that_are_not_contiguous(B, T, V, reduction, transposed):
    torch.manual_seed(0)
    logits = torch.randn(V, B * T, device=device).T
    logits = logits if transposed else logits.contiguous()
    target = torch.randint(0, V, (B * T,), device=device)

    actual, expected = (logits.detach().requires_grad_() for _ in range(2))
    F.cross_entropy(expected, target, reduction=reduction).backward()
    untouched = logits.clone()
    liger_cross_entropy(actual, target, reduction=reduction).backward()

    torch.testing.assert_close(actual.grad, expected.grad, atol=1e-6, rtol=1e-5)
    if transposed:  # contiguous logits are overwritten, as documented
        assert torch.equal(logits, untouched)
