"""For test/transformers/test_rope.py of Liger-Kernel: a second derivative is right, or it is refused."""

import pytest
import torch
from liger_kernel.transformers.rope import liger_rotary_pos_emb
from liger_kernel.utils import infer_device

device = infer_device()


@pytest.mark.parametrize("T, H, K", [(5, 2, 16), (3, 1, 8)])
def test_second_gradients_are_not_silently_wrong(T, H, K):
    torch.manual_seed(0)
    q, k, cotangent, direction = (torch.randn(1, H, T, K, device=device) for _ in range(4))
    angle = torch.rand(1, T, K // 2, device=device).repeat(1, 1, 2)
    cos, sin = angle.cos(), angle.sin()
    q.requires_grad_()
    cotangent.requires_grad_()

    rotated, _ = liger_rotary_pos_emb(q.clone(), k.clone(), cos, sin)
    (dq,) = torch.autograd.grad(rotated, q, cotangent.clone(), create_graph=True)
    try:
        (dq * direction).sum().backward()
    except RuntimeError as error:
        if "once_differentiable" not in str(error):
            raise
        return
    expected, _ = liger_rotary_pos_emb(direction.clone(), k.clone(), cos, sin)  # dq is linear in the cotangent
    torch.testing.assert_close(cotangent.grad, expected, atol=1e-5, rtol=1e-5)
