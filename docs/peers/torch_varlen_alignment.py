"""torch.nn.attention.varlen: heads of a slice, whose rows begin at odd addresses, end the CUDA context."""

import torch
from torch.nn.attention.varlen import varlen_attn

T, H, K = 16, 2, 8
q, k, v = (torch.randn(T, H, K + 1, device="cuda", dtype=torch.bfloat16)[..., :K] for _ in range(3))
cu_seqlens = torch.tensor([0, T], device="cuda", dtype=torch.int32)
try:
    print("finite:", bool(varlen_attn(q, k, v, cu_seqlens, cu_seqlens, T, T).isfinite().all()))
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0])
