"""mamba-ssm: its reference of the selective scan rounds the gate silu(z) to 16 bits, which its kernel does not."""

import torch
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn, selective_scan_ref

D, N, T = 4, 8, 1024
u, z, dy = torch.randn(3, 1, D, T, device="cuda").bfloat16()
delta, A = 0.5 * torch.rand(1, D, T, device="cuda").bfloat16(), -0.5 * torch.rand(D, N, device="cuda")
B, C = torch.randn(2, 1, N, T, device="cuda").bfloat16()
A.requires_grad_()
calls = {"reference": (selective_scan_ref, z), "kernel": (selective_scan_fn, z)}
exact = torch.autograd.grad(selective_scan_ref(u, delta, A, B, C, z=z.float()), A, dy)[0]  # the same gate, in fp32
for name, (scan, gate) in calls.items():
    (got,) = torch.autograd.grad(scan(u, delta, A, B, C, z=gate), A, dy)
    print(f"{name}: gradient of A off by {(got - exact).abs().max():.1e}, largest {exact.abs().max():.0f}")
