"""Jagged attention: the gradient of an output that is part of a concatenation is read from where that begins."""

import torch
from torch.nested import nested_tensor_from_jagged
from torch.nn.functional import scaled_dot_product_attention as attend

T, H, K, device = 5, 2, 8, "cuda" if torch.cuda.is_available() else "cpu"
cu_seqlens, before = torch.tensor([0, 2, 2, 5], device=device), torch.randn(3, H, K, device=device)
torch.manual_seed(0)
q, k, v, target = torch.randn(4, T, H, K, device=device).unbind()
q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
y = attend(*(nested_tensor_from_jagged(x, cu_seqlens).transpose(1, 2) for x in (q, k, v))).transpose(1, 2).values()
alone = (y - target).square().sum()
joined = (torch.cat([before, y]) - torch.cat([before, target])).square().sum()  # the same number
for name, x in zip("qkv", (q, k, v), strict=True):
    want, got = (torch.autograd.grad(loss, x, retain_graph=True)[0] for loss in (alone, joined))
    print(f"gradient of {name}: off by {(got - want).abs().max():.1e}, largest {want.abs().max():.1e}")
