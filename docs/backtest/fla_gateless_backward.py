"""flash-linear-attention's parallel attention at c7421244: backward without a gate ends in UnboundLocalError."""

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from fla.ops.attn import parallel

parallel.parallel_attn_bwd_preprocess = lambda o, do: (o * do).sum(-1)  # what its kernel computes
q, k, v, o, do = torch.randn(5, 1, 4, 1, 16)
try:
    parallel.parallel_attn_bwd(q, k, v, o, None, torch.zeros(1, 4, 1), do, scale=1.0, offsets=torch.tensor([0, 4]))
except UnboundLocalError as error:
    print(error)
