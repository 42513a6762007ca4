"""flash-linear-attention's token shift at 0563b759: rows past 2^31 elements are read and written elsewhere.

A token's offset in the pack is multiplied by its width in 32 bits. It needs a GPU with 10 GB of memory.
"""

import sys

import torch
from fla.modules.token_shift import token_shift

WIDTH, LENGTH = 768, 64
sequences = 2**31 // (WIDTH * LENGTH) + 2
x = torch.empty(1, sequences * LENGTH, WIDTH, dtype=torch.bfloat16, device="cuda").normal_()
offsets = LENGTH * torch.arange(sequences + 1, device="cuda")
last = x[0, -LENGTH:].double()
expected = torch.cat([torch.zeros_like(last[:1]), last[:-1]]) - last
print(f"{x.numel() - 2**31} elements past 2^31")
try:
    y = token_shift(x, offsets)
    torch.cuda.synchronize()
except RuntimeError as error:
    print(str(error).splitlines()[0])
    sys.exit(1)
difference = float((y[0, -LENGTH:] - expected).abs().max())
print(f"the last sequence is up to {difference:.3g} off")
sys.exit(not difference < 0.1)
