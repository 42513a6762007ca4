"""mamba-ssm: SSD refuses more than 65,535 chunks times groups."""

import torch
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as ssd

H, P, G, N, C = 8, 16, 8, 16, 16
for chunks in (8191, 8192):
    x, B = (torch.randn(1, chunks * C, n, k, device="cuda", dtype=torch.bfloat16) for n, k in ((H, P), (G, N)))
    try:
        y = ssd(x, torch.rand(1, chunks * C, H, device="cuda"), -torch.rand(H, device="cuda"), B, B, chunk_size=C)
        torch.cuda.synchronize()
        print(f"{chunks} chunks of {G} groups: {tuple(y.shape)}")
    except RuntimeError as error:
        print(f"{chunks} chunks of {G} groups: {type(error).__name__} {str(error).splitlines()[0]}")
