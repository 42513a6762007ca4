"""flash-linear-attention: rope of a pack of no sequences raises; torch's own operators return an empty tensor."""

import torch
from fla.modules.rotary import rotary_embedding

H, K = 2, 8
x, table = torch.randn(1, 0, H, K, device="cuda"), torch.rand(4, K // 2, device="cuda")
for offsets in ([0], [0, 0]):
    cu_seqlens = torch.tensor(offsets, device="cuda", dtype=torch.int32)
    try:
        start = torch.zeros_like(cu_seqlens[1:])
        y = rotary_embedding(x, table.cos(), table.sin(), cu_seqlens=cu_seqlens, seqlen_offsets=start)
        print(f"cu_seqlens {offsets}: shape {tuple(y.shape)}")
    except Exception as error:
        print(f"cu_seqlens {offsets}: {type(error).__name__} {str(error).splitlines()[0][:150]}")
