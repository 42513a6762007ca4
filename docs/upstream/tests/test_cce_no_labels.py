"""For tests/test_cce_loss_backward.py of ml-cross-entropy: a batch of which no label counts."""

import pytest
import torch
from cut_cross_entropy import linear_cross_entropy
from cut_cross_entropy.constants import IGNORE_INDEX

device = "cuda" if torch.cuda.is_available() else "cpu"
triton_only = pytest.mark.skipif(device == "cpu", reason="the reference compiles for minutes on a CPU")


@pytest.mark.parametrize("impl", ["cce", pytest.param("torch_compile", marks=triton_only)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16])
def test_backward_without_a_valid_target(impl: str, reduction: str, shift: bool, dtype: torch.dtype):
    torch.manual_seed(0)
    N, V, D = 16, 128, 64
    e, c = (torch.randn(n, D, device=device, dtype=dtype).requires_grad_() for n in (N, V))
    targets = torch.full((N,), IGNORE_INDEX, device=device)

    loss = linear_cross_entropy(e.view(1, N, D), c, targets.view(1, N), shift=shift, reduction=reduction, impl=impl)
    loss.sum().backward()

    for gradient in (e.grad, c.grad):
        assert gradient is not None
        assert not gradient.any()
