"""mamba-ssm: a pack of no tokens ends the process, or raises; torch's own operators return an empty tensor."""

import torch
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as ssd

H, P, N = 2, 64, 64
x, B, C = (torch.randn(1, 0, *shape, device="cuda", dtype=torch.bfloat16) for shape in ((H, P), (1, N), (1, N)))
dt, A = torch.rand(1, 0, H, device="cuda"), -torch.rand(H, device="cuda")
seq_idx = torch.zeros(1, 0, device="cuda", dtype=torch.int32)
print("no tokens, shape", tuple(ssd(x, dt, A, B, C, chunk_size=256, seq_idx=seq_idx).shape))
