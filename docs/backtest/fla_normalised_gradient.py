"""flash-linear-attention's normalised linear attention at 0b7fb85c: keys have no gradient through the denominator.

They are summed there by an operation without a backward pass. The sums of an empty sequence are read at the row before
its end, which in an empty pack is an IndexError.
"""

import torch
from fla.ops.linear_attn import utils


class Sum(torch.autograd.Function):
    """The project's own operation, computed by torch: it has no backward pass, either."""

    @staticmethod
    def forward(ctx, k):
        return k.cumsum(1)


utils.chunk_global_cumsum = lambda k, **_: Sum.apply(k.detach())
q, k = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1, requires_grad=True)
o, _ = utils.normalize_with_z_state(q * k, q, k, 1.0, None, False, torch.tensor([0, 1]))
o.sum().backward()
print(f"o = q k / (q k) of one token is {o.item():.3f}, and its gradient of k {k.grad.item():.3f}, not 0")
try:
    empty = torch.ones(1, 0, 1, 1)
    utils.normalize_with_z_state(empty, empty, empty, 1.0, None, False, torch.tensor([0, 0]))
except IndexError as error:
    print("a pack of one empty sequence:", type(error).__name__, error)
