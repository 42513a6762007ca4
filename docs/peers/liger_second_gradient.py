"""liger-kernel: the gradient of rope's gradient is wrong, and nothing is raised: backward overwrites what comes in."""

import torch
from liger_kernel.transformers.rope import liger_rotary_pos_emb as rope

T, H, K = 5, 2, 16
q, k, w, c = (torch.randn(1, H, T, K, device="cuda") for _ in range(4))
angle = torch.rand(1, T, K // 2, device="cuda").repeat(1, 1, 2)
cos, sin, back = angle.cos(), angle.sin(), -angle.sin()
q.requires_grad_(), w.requires_grad_()
try:
    y, _ = rope(q.clone(), k.clone(), cos, sin)
    (dq,) = torch.autograd.grad(y, q, w.clone(), create_graph=True)  # linear in w: w rotated back
    rotated_back, _ = rope(w.detach().clone(), k.clone(), cos, back)
    print("gradient is w rotated back:", torch.allclose(dq, rotated_back, atol=1e-5))
    (dw,) = torch.autograd.grad(dq, w, c.clone())
    want, _ = rope(c.clone(), k.clone(), cos, sin)
    print(f"gradient of it by w: off by {(dw - want).abs().max():.2g}, equal to what came in: {torch.equal(dw, c)}")
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0])
