"""PyTorch: varlen_attn takes at most 65,535 sequences."""

import torch
from torch.nn.attention.varlen import varlen_attn

for sequences in (65_535, 65_536):
    q, k, v = torch.randn(3, sequences, 1, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    cu_seqlens = torch.arange(sequences + 1, device="cuda", dtype=torch.int32)
    try:
        y = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, 1, 1)
        torch.cuda.synchronize()
        print(sequences, "sequences of one token: largest error", float((y - v).abs().max()))
    except Exception as error:
        print(sequences, "sequences of one token:", type(error).__name__, str(error).splitlines()[0])
