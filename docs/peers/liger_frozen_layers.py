"""liger-kernel: a head above frozen layers gets no gradient from the fused loss."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x, weight = torch.randn(8, 16, device=device), torch.randn(32, 16, device=device)
target = torch.randint(32, (8,), device=device)
for frozen in (False, True):
    x.requires_grad_(not frozen)
    head, exact = (weight.clone().requires_grad_() for _ in range(2))
    liger_fused_linear_cross_entropy(x, head, target).backward()
    torch.nn.functional.cross_entropy(x @ exact.T, target).backward()
    norm = 0.0 if head.grad is None else float(head.grad.norm())
    print(f"layers below frozen: {frozen}; norm of the head's gradient {norm:.4f}, of torch's {exact.grad.norm():.4f}")
