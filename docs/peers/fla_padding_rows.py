"""flash-linear-attention: rows past the last boundary get whatever the memory of their outputs and gradients held."""

import torch
from fla.ops.delta_rule import chunk_delta_rule
from fla.ops.kda import chunk_kda

T, H, K = 512, 2, 64
cu_seqlens = torch.tensor([0, 200, 500], device="cuda", dtype=torch.int32)  # the pack is padded to T
for rule in (chunk_delta_rule, chunk_kda):
    q, k, v = (torch.randn(1, T, H, K, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    given = {"g": -torch.rand(1, T, H, K, device="cuda")} if rule is chunk_kda else {}
    _ = [torch.full((n,), 1e19, device="cuda") for n in (1 << 12, 1 << 15, 1 << 17, 1 << 18) for _ in range(64)]
    del _  # memory that another layer has used
    y = rule(q, k / 8, v, beta=torch.rand(1, T, H, device="cuda"), cu_seqlens=cu_seqlens, **given)[0]
    y[:, :500].float().sum().backward()  # the loss does not see the padding
    rows = {"output": y, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    worst = {name: f"{x[:, 500:].abs().max().item():.0e}" for name, x in rows.items()}
    print(rule.__name__, "largest value past the last boundary:", worst)
