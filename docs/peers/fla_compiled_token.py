"""flash-linear-attention: in torch.compile the recurrent delta rule does not compile for a pack of one token."""

import torch
from fla.ops.delta_rule import fused_recurrent_delta_rule

compiled = torch.compile(fused_recurrent_delta_rule)
for tokens in (2, 1):  # such as one request of a server that decodes
    q, k, v = torch.randn(3, 1, tokens, 2, 64, device="cuda") / 8
    beta = torch.rand(1, tokens, 2, device="cuda")
    cu_seqlens = torch.tensor([0, tokens], device="cuda", dtype=torch.int32)
    try:
        compiled(q, k, v, beta, cu_seqlens=cu_seqlens)
        print(f"tokens {tokens}: no error")
    except Exception as error:
        print(f"tokens {tokens}: {type(error).__name__}: {[x for x in str(error).splitlines() if 'object' in x]}")
