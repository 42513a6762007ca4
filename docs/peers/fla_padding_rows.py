"""flash-linear-attention: rows past the last boundary get whatever the memory of their outputs and gradients held."""

import torch
from fla.ops.delta_rule import chunk_delta_rule
from fla.ops.kda import chunk_kda
from triton.runtime.autotuner import Autotuner

Autotuner.prune_configs = lambda self, call: self.configs[:1]  # the first configuration will do
torch.use_deterministic_algorithms(True, warn_only=True)  # what torch.empty returns holds NaN
T, H, K = 128, 1, 32
cu_seqlens = torch.tensor([0, 40, 100], device="cuda", dtype=torch.int32)  # the pack is padded to T
for rule in (chunk_delta_rule, chunk_kda):
    q, k, v = (torch.randn(1, T, H, K, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    given = {"g": -torch.rand(1, T, H, K, device="cuda")} if rule is chunk_kda else {}
    y = rule(q, k / 8, v, beta=torch.rand(1, T, H, device="cuda"), cu_seqlens=cu_seqlens, **given)[0]
    y[:, :100].float().sum().backward()  # the loss does not see the padding
    rows = {"output": y, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    left = {name: int(x[0, :, 0].isnan().any(-1).sum()) for name, x in rows.items()}
    print(rule.__name__, "rows with NaN, of", T - 100, "past the last boundary:", left)
