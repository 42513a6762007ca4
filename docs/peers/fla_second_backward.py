"""flash-linear-attention: a second backward pass over one graph scales its gradients by the upstream gradient again."""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from fla.modules.fused_linear_cross_entropy import fused_linear_cross_entropy_loss

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
target = torch.randint(8, (4,), device=device)
x, weight = (torch.randn(n, 16, device=device).requires_grad_() for n in (4, 8))
loss = 3 * fused_linear_cross_entropy_loss(x, target, weight)
first, second = ([g.clone() for g in torch.autograd.grad(loss, (x, weight), retain_graph=True)] for _ in range(2))
ratios = [float(b.norm() / a.norm()) for a, b in zip(first, second, strict=True)]
print("of 3 x the loss: the second gradients of x and of the weight are {:.2f} and {:.2f} x the first".format(*ratios))
sys.exit(max(ratios) > 1.001)
