"""FlashAttention-4: a NaN in one document of a pack reaches the outputs and gradients of the document before it."""

import torch
from flash_attn.cute import flash_attn_varlen_func

names = "y", "dq", "dk", "dv"
q, k, v = torch.randn(3, 200, 2, 64, device="cuda", dtype=torch.bfloat16).unbind()
for x in (q, k, v):
    x[100:] = float("nan")  # the second of two documents
    x.requires_grad_()
cu_seqlens = torch.tensor([0, 100, 200], device="cuda", dtype=torch.int32)
pack = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": 100, "max_seqlen_k": 100}
y = flash_attn_varlen_func(q, k, v, **pack)[0]
found = [y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))]
print("NaN in the first document:", {n: int(x[:100].isnan().sum()) for n, x in zip(names, found, strict=True)})
