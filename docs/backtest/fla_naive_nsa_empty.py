"""flash-linear-attention's naive_nsa at 2ac88824: a pack with an empty sequence ends in an exception of a reshape."""

import torch
from fla.ops.nsa.naive import naive_nsa

q, k, v = torch.randn(3, 1, 5, 1, 4)
blocks = torch.zeros(1, 5, 1, 1, dtype=torch.long)
for offsets in ([0, 3, 5], [0, 3, 3, 5]):
    try:
        y = naive_nsa(q, k, v, indices=blocks, block_size=4, cu_seqlens=torch.tensor(offsets))
        print(offsets, "is computed:", tuple(y.shape))
    except RuntimeError as error:
        print(offsets, error)
