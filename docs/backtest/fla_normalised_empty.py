"""flash-linear-attention's normalised linear attention at 4b02d15d: the sums of an empty sequence are of another one.

They are read at the row before its end, which is the sequence before's, or row -1 of the pack; in the backward pass
row -1 is an IndexError.
"""

import torch
from fla.ops.linear_attn import utils

utils.chunk_global_cumsum = lambda k, **_: torch.cat([x.cumsum(1) for x in k.split(lengths, 1)], 1)  # its kernel
for lengths in ([2, 0, 1], [0, 2]):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    q, k = torch.ones(1, sum(lengths), 1, 1), torch.ones(1, sum(lengths), 1, 1, requires_grad=True)
    o, sums = utils.StatefulNormalizeFunction.apply(q, q, k, 1.0, None, False, offsets)
    print(f"lengths {lengths}: sums of the keys {sums.flatten().tolist()}")
    try:
        (o.sum() + sums.sum()).backward()
    except (IndexError, RuntimeError) as error:
        print("backward:", type(error).__name__, error)
