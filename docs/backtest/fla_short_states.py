"""flash-linear-attention's causal convolution at 71ebc498: gradients of final states of short sequences.

The state of a sequence shorter than the window has its tokens at the end; their gradients are read at the begin.
"""

import os
from contextlib import nullcontext

os.environ["TRITON_INTERPRET"] = "1"

import torch
from triton.runtime.autotuner import Autotuner

Autotuner.run = lambda self, *a, **options: self.fn.run(*a, **options, **self.configs[0].kwargs)  # tuning needs a GPU
torch.cpu.device = torch.cuda.device = lambda _: nullcontext()
from fla.modules.convolution import causal_conv1d

for tokens in (5, 1):
    x = torch.ones(1, tokens, 1, requires_grad=True)
    _, states = causal_conv1d(x, torch.ones(1, 4), output_final_state=True, cu_seqlens=torch.tensor([0, tokens]))
    (dx,) = torch.autograd.grad(states, x, torch.arange(4.0).view(1, 1, 4))
    print(f"{tokens} tokens: states {states.flatten().tolist()}, of gradient 0, 1, 2, 3; of x {dx.flatten().tolist()}")
