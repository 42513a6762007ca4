"""FlashAttention-4: on Hopper, heads of 16, 48, 72, 80 or 112 channels have gradients that are noise."""

import torch
from flash_attn.cute import flash_attn_func
from torch.nn.functional import scaled_dot_product_attention

for channels in (16, 32, 48, 64, 72, 80, 96, 112, 128):
    q, k, v, dy = torch.randn(4, 1, 100, 2, channels, device="cuda", dtype=torch.bfloat16).unbind()
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    y = flash_attn_func(q, k, v)[0]
    exact = scaled_dot_product_attention(*(x.transpose(1, 2).double() for x in (q, k, v))).transpose(1, 2)
    got, want = (torch.autograd.grad(out, (q, k, v), dy.to(out.dtype)) for out in (y, exact))
    off = [float((a.double() - b).norm() / b.double().norm()) for a, b in zip((y, *got), (exact, *want), strict=True)]
    print(f"{channels} channels: relative error of y {off[0]:.0e}, of the gradients", *(f"{x:.0e}" for x in off[1:]))
