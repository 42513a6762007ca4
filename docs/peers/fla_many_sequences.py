"""flash-linear-attention: more than 65,535 sequences are refused by the launch: their chunks lie on a short axis."""

import torch
from fla.modules.causal_conv1d.ops import causal_conv1d

D, W = 8, 4
for sequences in (65_535, 65_536):
    x, weight = torch.randn(1, sequences, D, device="cuda"), torch.randn(D, W, device="cuda")
    cu_seqlens = torch.arange(sequences + 1, device="cuda")
    try:
        y, _ = causal_conv1d(x, weight, cu_seqlens=cu_seqlens, backend="triton")
        print(sequences, "sequences: largest error", float((y - x * weight[:, -1]).abs().max()))
    except Exception as error:
        print(sequences, "sequences:", type(error).__name__, str(error).splitlines()[0])
