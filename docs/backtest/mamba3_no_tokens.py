"""mamba-ssm's Mamba-3 at 74384882: a pack without tokens, which a rank or a filtered batch may have, is refused.

`mamba_ssm/__init__.py` has to be empty, since it imports compiled extensions. A kernel's first lines are reached with
tokens: Triton's interpreter runs none with assembly in it.
"""

import os
import sys
from contextlib import nullcontext
from types import ModuleType

os.environ["TRITON_INTERPRET"] = "1"
sys.modules["selective_scan_cuda"] = ModuleType("selective_scan_cuda")

import torch
from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined
from triton.runtime.autotuner import Autotuner

Autotuner.run = lambda self, *a, **options: self.fn.run(*a, **options, **self.configs[0].kwargs)  # tuning needs a GPU
torch.cpu.device = torch.cuda.device = lambda _: nullcontext()


def call(tokens: int) -> Exception | None:
    q, k, v = (torch.randn(1, tokens, 1, 16).half() for _ in "qkv")
    adt, dt, trap = (sign * torch.rand(1, 1, tokens) for sign in (-1, 1, 1))
    biases, angles = torch.randn(2, 1, 16), torch.randn(1, tokens, 1, 8)
    offsets = torch.tensor([0, tokens][: 1 + bool(tokens)], dtype=torch.int32)
    try:
        mamba3_siso_combined(q, k, v, adt, dt, trap, *biases, angles, None, None, cu_seqlens=offsets)
    except Exception as error:
        return error
    return None


errors = {tokens: call(tokens) for tokens in (16, 0)}
for tokens, error in errors.items():
    print(f"{tokens} tokens: {type(error).__name__}: {error}")
sys.exit(isinstance(errors[0], AssertionError) and not isinstance(errors[16], AssertionError))
