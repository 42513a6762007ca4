"""liger-kernel: the gradient of its cross entropy is a constant to autograd, so that a penalty on it trains nothing."""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from liger_kernel.transformers.functional import liger_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
logits, target = torch.randn(4, 8, device=device), torch.randint(8, (4,), device=device)


def gradients(cross_entropy, reduction):
    leaf = logits.clone().requires_grad_()
    loss = cross_entropy(leaf.clone(), target, reduction=reduction).sum()
    (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (loss + 10 * gradient.square().sum()).backward()  # without the penalty it would be `gradient` alone
    return leaf.grad, gradient.detach()


wrong = False
for reduction in ("mean", "none"):
    exact, without = gradients(torch.nn.functional.cross_entropy, reduction)
    try:
        got, _ = gradients(liger_cross_entropy, reduction)
    except RuntimeError as error:
        print(f"reduction {reduction}: RuntimeError {str(error)[:80]}")
        continue
    off, penalty = (float((x - exact).norm() / exact.norm()) for x in (got, without))
    print(f"reduction {reduction}: with a penalty off by {off:.2f}; without the penalty it would be {penalty:.2f}")
    wrong |= off > 1e-3
sys.exit(wrong)
