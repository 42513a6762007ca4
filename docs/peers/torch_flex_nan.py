"""FlexAttention: NaN in one document reaches the outputs and gradients of the document before it in the same tile."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

document = torch.tensor([0] * 40 + [1] * 40, device="cuda")
mask = create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, 80, 80)
attend = torch.compile(flex_attention)
for name in ("nothing", "q", "k", "v"):
    q, k, v = tensors = torch.randn(3, 1, 2, 80, 64, device="cuda", dtype=torch.bfloat16).unbind()
    for each, x in zip("qkv", tensors, strict=True):
        x[:, :, 40:] = float("nan") if each == name else x[:, :, 40:]  # of the second document
        x.requires_grad_()
    y = attend(*tensors, block_mask=mask)[:, :, :40]  # the first one
    found = [y, *(x[:, :, :40] for x in torch.autograd.grad(y.float().sum(), tensors))]
    print(
        f"NaN in {name}: in the first document",
        *(f"{n} {int(x.isnan().sum())}" for n, x in zip(("y", "dq", "dk", "dv"), found, strict=True)),
    )
