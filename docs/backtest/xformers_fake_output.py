"""xformers at 0f0bb9d9: what its attention says of its outputs without computing them is not what it returns.

It returns what torch's FlashAttention returns. Its function for tensors without data names another dtype for the state
of the random numbers than that of torch does.
"""

import sys

import torch
from torch._subclasses import FakeTensorMode

torch.backends.cuda.is_flash_attention_available = lambda: True  # nothing is computed here
from xformers.ops.fmha import flash

with FakeTensorMode():
    q, k, v = (torch.empty(1, 16, 2, 32, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    returned = torch.ops.aten._flash_attention_forward(q, k, v, None, None, 16, 16, 0.0, False, False, scale=1.0)[:3]
    call = torch.ops.xformers_flash.flash_fwd.default
    promised = call(q, k, v, None, None, None, 16, 16, 0.0, 1.0, False, -1, -1, False, None)
dtypes = [[output.dtype for output in outputs] for outputs in (returned, promised)]
print(f"{flash.__name__}: torch returns {dtypes[0]}, xformers says {dtypes[1]}")
sys.exit(dtypes[0] != dtypes[1])
