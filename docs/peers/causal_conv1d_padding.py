"""causal-conv1d: what padding tokens (seq_idx -1) hold is in the gradient of the weight, and they get gradients."""

import torch
from causal_conv1d import causal_conv1d_fn

T, D, W = 16, 64, 4
x, dy = (torch.randn(1, T, D, device="cuda").transpose(1, 2) for _ in range(2))  # channel last
weight = torch.randn(D, W, device="cuda", requires_grad=True)
seq_idx = torch.tensor([[0] * 12 + [-1] * 4], device="cuda", dtype=torch.int32)
for padding in (0.0, 100.0):
    leaf = torch.where(seq_idx >= 0, x, padding).requires_grad_()
    y = causal_conv1d_fn(leaf, weight, seq_idx=seq_idx)
    dx, dw = torch.autograd.grad(y, (leaf, weight), dy)
    print(f"padding {padding}: out {y[..., 12:].abs().max():.3g} dx {dx[..., 12:].abs().max():.3g} dw {dw.norm():.4g}")
