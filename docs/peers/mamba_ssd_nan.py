"""mamba-ssm: NaN in one sequence reaches the outputs and gradients of the sequence before it in the same chunk."""

import torch
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as ssd

T, H, P, N = 16, 2, 64, 64
x, B, C = (torch.randn(1, T, *shape, device="cuda", dtype=torch.bfloat16) for shape in ((H, P), (1, N), (1, N)))
dt, A = torch.rand(1, T, H, device="cuda"), -torch.rand(H, device="cuda")
seq_idx = torch.tensor([[0] * 8 + [1] * 8], device="cuda", dtype=torch.int32)
x[:, 8:] = float("nan")  # the second sequence
x.requires_grad_()
y = ssd(x, dt, A, B, C, chunk_size=256, seq_idx=seq_idx)
(dx,) = torch.autograd.grad(y[:, :8].float().sum(), x)
print("NaN in the first sequence: output", int(y[:, :8].isnan().sum()), "gradient", int(dx[:, :8].isnan().sum()))
