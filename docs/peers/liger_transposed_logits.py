"""liger-kernel: logits that are not contiguous along the vocabulary get themselves as their gradient."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from liger_kernel.transformers.functional import liger_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
logits, target = torch.randn(32, 8, device=device), torch.randint(32, (8,), device=device)
for name, x in (("rows", logits.T.contiguous()), ("columns", logits.T)):
    leaf, exact = x.detach().requires_grad_(), x.clone().requires_grad_()
    liger_cross_entropy(leaf, target).backward()
    torch.nn.functional.cross_entropy(exact, target).backward()
    error, is_itself = float((leaf.grad - exact.grad).abs().max()), torch.equal(leaf.grad, exact)
    print(f"logits contiguous by {name}: gradient off by {error:.1e}, equal to the logits: {is_itself}")
