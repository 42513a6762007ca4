"""mamba-ssm: the selective scan of a batch without sequences, or without tokens."""

import torch
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

D, N = 8, 4
A = -torch.rand(D, N, device="cuda")
for batch, tokens in ((2, 3), (0, 3), (2, 0)):
    u, delta = (torch.rand(batch, D, tokens, device="cuda") for _ in range(2))
    B, C = (torch.randn(batch, 1, N, tokens, device="cuda") for _ in range(2))
    try:
        y = selective_scan_fn(u, delta, A, B, C)
        torch.cuda.synchronize()
        print(f"batch {batch} tokens {tokens}: shape {tuple(y.shape)}")
    except (RuntimeError, IndexError) as error:
        print(f"batch {batch} tokens {tokens}: {type(error).__name__} {str(error).splitlines()[0][:150]}")
