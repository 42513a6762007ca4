"""Jagged attention: beside an empty document every output and gradient is NaN on a GPU."""

import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as attend

names = "y", "dq", "dk", "dv"
for lengths in ([2, 3], [2, 0, 3], [0, 1]):
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    q, k, v = torch.randn(3, sum(lengths), 2, 64, device="cuda", dtype=torch.bfloat16).unbind()
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    y = attend(*(nested_tensor_from_jagged(x, cu_seqlens).transpose(1, 2) for x in (q, k, v))).transpose(1, 2).values()
    found = [y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))]
    print(lengths, "NaN in", {n: int(x.isnan().sum()) for n, x in zip(names, found, strict=True)}, "of", y.numel())
