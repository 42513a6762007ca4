"""causal-conv1d: a pack of no tokens is a launch that the device refuses; operators of torch return an empty tensor."""

import torch
from causal_conv1d import causal_conv1d_fn

D, W = 64, 4
weight = torch.randn(D, W, device="cuda")
for tokens in (8, 0):
    x = torch.randn(1, tokens, D, device="cuda").transpose(1, 2)  # channel last
    try:
        y = causal_conv1d_fn(x, weight, seq_idx=torch.zeros(1, tokens, device="cuda", dtype=torch.int32))
        torch.cuda.synchronize()
        print(f"{tokens} tokens: shape {tuple(y.shape)}")
    except RuntimeError as error:
        print(f"{tokens} tokens: {type(error).__name__} {str(error).splitlines()[0][:150]}")
