"""FlexAttention: the backward pass reads memory that is not its own where rows of q begin past 2^31 elements."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

T, H, K = 624, 2, 64
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device="cuda")
attend = torch.compile(flex_attention, dynamic=True)
q, k, v = torch.randn(3, 1, H, T, K, device="cuda", dtype=torch.bfloat16).unbind()
for pitch in (3_433_280, 3_507_008):  # elements from row to row, as in a slice of a wide projection
    last = f"the last row begins at element {(T - 1) * pitch:,}"
    wide = torch.zeros(T, pitch, device="cuda", dtype=torch.bfloat16)
    wide[:, : H * K] = q[0].transpose(0, 1).reshape(T, H * K)
    far = wide[:, : H * K].view(T, H, K).transpose(0, 1)[None]
    try:
        leaves = [x.detach().requires_grad_() for x in (far, q)]
        ys = [attend(x, k, v, block_mask=mask) for x in leaves]
        dqs = [torch.autograd.grad(y.float().sum(), x)[0] for x, y in zip(leaves, ys, strict=True)]
        y, dq = (float((got - want).abs().max()) for got, want in (map(torch.Tensor.detach, ys), dqs))
        print(f"{last}: largest errors of y {y:.1e}, dq {dq:.1e}")
    except RuntimeError as error:
        print(f"{last}: {type(error).__name__} {str(error).splitlines()[0]}")
