"""mamba-ssm: the backward pass of SSD refuses a B or C whose last axis is not the dense one."""

import torch
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as ssd

T, H, P, G, N = 64, 2, 64, 2, 64
for name in ("nothing", "x", "B", "C"):
    tensors = [torch.randn(1, T, n, k, device="cuda", dtype=torch.bfloat16) for n, k in ((H, P), (G, N), (G, N))]
    x, B, C = (
        (t.mT.contiguous().mT if each == name else t).requires_grad_() for each, t in zip("xBC", tensors, strict=True)
    )
    y = ssd(x, torch.rand(1, T, H, device="cuda"), -torch.rand(H, device="cuda"), B, C, chunk_size=64)
    try:
        torch.autograd.grad(y.sum(), (x, B, C))
        print(f"{name} transposed: has gradients")
    except AssertionError:
        print(f"{name} transposed: AssertionError")
