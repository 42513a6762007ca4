"""flash-linear-attention: boundaries edited in place are not seen, since a table is kept by the tensor's identity."""

import torch
from fla.modules.rotary import rotary_embedding

T, H, K = 33, 2, 8
x, angle = torch.randn(1, T, H, K, device="cuda"), torch.rand(T, K // 2, device="cuda")
cos, sin, offsets = angle.cos(), angle.sin(), torch.zeros(3, device="cuda", dtype=torch.int32)
cu_seqlens = torch.tensor([0, 16, 16, 33], device="cuda", dtype=torch.int32)
rotary_embedding(x, cos, sin, cu_seqlens=cu_seqlens, seqlen_offsets=offsets)
cu_seqlens.copy_(torch.tensor([0, 16, 32, 33]))  # as a data loader does that keeps its buffers
edited = rotary_embedding(x, cos, sin, cu_seqlens=cu_seqlens, seqlen_offsets=offsets)
fresh = rotary_embedding(x, cos, sin, cu_seqlens=cu_seqlens.clone(), seqlen_offsets=offsets)
print("wrong rows after an edit in place:", int((edited - fresh).abs().amax((-1, -2)).gt(1e-3).sum()), "of", T)
