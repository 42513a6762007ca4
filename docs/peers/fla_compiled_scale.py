"""flash-linear-attention: in torch.compile the recurrent simple GLA has no backward pass."""

import torch
from fla.ops.simple_gla import fused_recurrent_simple_gla

T, H, K = 16, 2, 64
q, k, v = (torch.randn(1, T, H, K, device="cuda", requires_grad=True) for _ in range(3))
g = -torch.rand(1, T, H, device="cuda")
compiled = torch.compile(fused_recurrent_simple_gla)
for scale in (0.125, 0.25, 0.5):
    try:
        compiled(q, k, v, g, scale=scale)[0].sum().backward()
        print(f"scale {scale}: no error")
    except Exception as error:
        print(f"scale {scale}: {type(error).__name__}: ... {str(error).splitlines()[-1].strip()[:110]}")
