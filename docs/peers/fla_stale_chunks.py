"""flash-linear-attention: the gated delta rule and KDA compute the chunks of boundaries that were edited since."""

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.kda import chunk_kda

T, H, K = 512, 2, 64
q, k, v = torch.randn(3, 1, T, H, K, device="cuda", dtype=torch.bfloat16)
k, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(1, T, H, device="cuda")
g = -torch.rand(1, T, H, K, device="cuda") / 64
for rule, gate in ((chunk_gated_delta_rule, g[..., 0]), (chunk_kda, g)):
    cu_seqlens = torch.tensor([0, 256, 512], device="cuda", dtype=torch.int32)
    before = rule(q, k, v, g=gate, beta=beta, cu_seqlens=cu_seqlens)[0]
    cu_seqlens.copy_(torch.tensor([0, 512, 512]))  # as a data loader does that keeps its buffers
    edited = rule(q, k, v, g=gate, beta=beta, cu_seqlens=cu_seqlens)[0]
    fresh = rule(q, k, v, g=gate, beta=beta, cu_seqlens=cu_seqlens.clone())[0]
    right = (edited - fresh).abs().amax((0, 2, 3)) < 1e-3
    print(rule.__name__, "after an edit in place:", T - int(right.sum()), "of", T, "tokens are wrong")
