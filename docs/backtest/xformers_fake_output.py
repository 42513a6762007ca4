"""xformers at 0f0bb9d9: what its attention says of its outputs without computing them is not what it returns.

The operator's function for tensors without data names another dtype for the state of the random numbers than
FlashAttention returns. It needs a GPU.
"""

import sys

import torch
from torch._subclasses import FakeTensorMode
from xformers.ops.fmha import flash

flash_fwd = torch.ops.xformers_flash.flash_fwd.default


def dtypes() -> list[torch.dtype]:
    q, k, v = (torch.randn(1, 16, 2, 32, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    outputs = flash_fwd(q, k, v, None, None, None, 16, 16, 0.0, 1.0, False, -1, -1, False, None)
    return [output.dtype for output in outputs]


computed = dtypes()
with FakeTensorMode():
    promised = dtypes()
print(f"{flash.__name__}: outputs are {computed}, without data {promised}")
sys.exit(computed != promised)
