"""FlashAttention-4: NaN in one sequence reaches the outputs and gradients of the sequence before it."""

import torch
from flash_attn.cute import flash_attn_varlen_func

cu_seqlens = torch.tensor([0, 40, 80], device="cuda", dtype=torch.int32)
for name in ("nothing", "q", "k", "v"):
    tensors = torch.randn(3, 80, 2, 64, device="cuda", dtype=torch.bfloat16).unbind()
    for each, x in zip("qkv", tensors, strict=True):
        x[40:] = float("nan") if each == name else x[40:]  # of the second sequence
        x.requires_grad_()
    lengths = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": 40, "max_seqlen_k": 40}
    y = flash_attn_varlen_func(*tensors, **lengths)[0]
    found = [y[:40], *(x[:40] for x in torch.autograd.grad(y[:40].float().sum(), tensors))]
    counts = (f"{n} {int(x.isnan().sum())}" for n, x in zip(("y", "dq", "dk", "dv"), found, strict=True))
    print(f"NaN in {name}: in the first sequence", *counts)
