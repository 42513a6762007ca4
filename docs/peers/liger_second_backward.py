"""liger-kernel: a second backward pass over one graph returns gradients scaled by the upstream gradient once more."""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from liger_kernel.transformers.functional import liger_cross_entropy, liger_fused_linear_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
target = torch.randint(8, (4,), device=device)
weight, logits, hidden = (torch.randn(n, m, device=device) for n, m in ((8, 16), (4, 8), (4, 16)))
wrong = False
for name, x, loss_of in (
    ("cross entropy", logits, lambda x: liger_cross_entropy(x, target)),
    ("fused linear cross entropy", hidden, lambda x: liger_fused_linear_cross_entropy(x, weight, target)),
):
    leaf = x.clone().requires_grad_()
    loss = 3 * loss_of(leaf)
    first, second = (torch.autograd.grad(loss, leaf, retain_graph=True)[0].clone() for _ in range(2))
    ratio = float((second.norm() / first.norm()).item())
    print(f"{name}, of 3 x the loss: the second gradient is {ratio:.2f} x the first")
    wrong |= abs(ratio - 1) > 1e-3
sys.exit(wrong)
