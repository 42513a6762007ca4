"""For test/test_nestedtensor.py of PyTorch: attention of jagged tensors whose output is part of a concatenation."""

import pytest
import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU"))])  # fmt: skip
@pytest.mark.parametrize("rows_before", [0, 3])
def test_sdpa_gradient_of_a_slice(device, rows_before):
    torch.manual_seed(0)
    offsets = torch.tensor([0, 2, 2, 5], device=device)  # an empty sequence: the math backend on a GPU too
    q, k, v = (torch.randn(5, 2, 8, device=device, requires_grad=True) for _ in range(3))
    before, target = torch.randn(rows_before, 2, 8, device=device), torch.randn(5, 2, 8, device=device)

    jagged = (nested_tensor_from_jagged(x, offsets).transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(*jagged).transpose(1, 2).values()
    loss = (out - target).square().sum()
    joined = (torch.cat([before, out]) - torch.cat([before, target])).square().sum()

    expected = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    actual = torch.autograd.grad(joined, (q, k, v))
    torch.testing.assert_close(actual, expected)
