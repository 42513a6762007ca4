"""cut-cross-entropy: the rows of x past 2^31 elements are read 2^32 elements before them."""

import math
import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from cut_cross_entropy import linear_cross_entropy

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width, vocabulary, tokens = 64, 128, 2**25 + 2  # the last row begins at element 2^31 + 64
memory = torch.empty(2**31 + tokens * width, dtype=torch.bfloat16, device=device)  # 8.6 GB; x is its second half
memory[: width * 2] = 0  # what lies 2^32 elements before the last row: without it, the address is not the process's
x, weight = memory[2**31 :].view(tokens, width), torch.randn(vocabulary, width, device=device).bfloat16()
labels = torch.full((tokens,), -100, device=device)
x[-1], labels[-1] = torch.randn(width, device=device), 5
loss = float(linear_cross_entropy(x, weight, labels))  # of the last row alone
exact = float(torch.nn.functional.cross_entropy(x[-1:].double() @ weight.double().T, labels[-1:]))
print(f"loss {loss:.4f}, of the row itself {exact:.4f}, of a row of zeros {math.log(vocabulary):.4f}")
sys.exit(abs(loss - exact) > 0.05)
