"""cut-cross-entropy: a batch of which no label counts has a loss of NaN, and no backward pass."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from cut_cross_entropy import linear_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
x, weight = (torch.randn(n, 64, device=device).bfloat16().requires_grad_() for n in (16, 128))
loss = linear_cross_entropy(x, weight, torch.full((16,), -100, device=device))
try:
    loss.backward()
    ended = f"gradients of {float(x.grad.norm())} and {float(weight.grad.norm())}"
except ZeroDivisionError as error:
    ended = f"ZeroDivisionError: {error}"
print(f"no label counts: loss {float(loss.detach())}, then {ended}")
