"""FlexAttention: a NaN in one document of a pack reaches the outputs and gradients of another."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

document = torch.tensor([0] * 100 + [1] * 156, device="cuda")
mask = create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, 256, 256)
names = "y", "dq", "dk", "dv"
q, k, v = torch.randn(3, 1, 2, 256, 64, device="cuda", dtype=torch.bfloat16).unbind()
for x in (q, k, v):
    x[:, :, 100:] = float("nan")
    x.requires_grad_()
y = torch.compile(flex_attention)(q, k, v, block_mask=mask)
found = [y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))]
print("NaN in the first document:", {n: int(x[:, :, :100].isnan().sum()) for n, x in zip(names, found, strict=True)})
