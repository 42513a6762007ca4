"""flash-linear-attention's GLA layer at 9b3c930c: a mask beside offsets ends in UnboundLocalError.

With cu_seqlens the mask is not used to unpad the tokens, but the output is padded by its indices, which were never set.
"""

import torch
from fla.layers import gla

layer = gla.GatedLinearAttention(hidden_size=64, num_heads=2)
gla.fused_recurrent_gla = lambda q, k, v, **_: (v, None)  # Triton; here only shapes matter
layer.g_norm_swish_gate = None
gla.GatedLinearAttention.g_norm_swish_gate = lambda self, o, g: o
x, offsets = torch.randn(1, 21, 64), torch.tensor([0, 5, 14, 21])
print("offsets alone:", tuple(layer(x, cu_seqlens=offsets)[0].shape))
try:
    layer(x, attention_mask=torch.ones(1, 21), cu_seqlens=offsets)
except UnboundLocalError as error:
    print("and a mask of ones:", error)
