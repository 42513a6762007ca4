"""causal-conv1d: a decoding step of no requests is a launch that the device refuses."""

import torch
from causal_conv1d import causal_conv1d_update

D, W = 64, 4
weight = torch.randn(D, W, device="cuda")
pool = torch.zeros(8, W - 1, D, device="cuda").transpose(1, 2)
for requests in (2, 0):
    x, slots = torch.randn(requests, D, device="cuda"), torch.arange(requests, device="cuda", dtype=torch.int32)
    try:
        y = causal_conv1d_update(x, pool, weight, conv_state_indices=slots)
        torch.cuda.synchronize()
        print(f"{requests} requests: shape {tuple(y.shape)}")
    except RuntimeError as error:
        print(f"{requests} requests: {type(error).__name__} {str(error).splitlines()[0][:150]}")
