"""mamba-ssm's Mamba-3 at 74384882: a pack without tokens, which a rank or a filtered batch may have, is refused.

`mamba_ssm/__init__.py` has to be empty, since it imports compiled extensions. It needs a GPU.
"""

import sys
from types import ModuleType

sys.modules["selective_scan_cuda"] = ModuleType("selective_scan_cuda")

import torch
from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined


def call(tokens: int) -> str:
    q, k = (torch.randn(1, tokens, 1, 16, device="cuda").bfloat16() for _ in "qk")
    v, angles = torch.randn(1, tokens, 1, 16, device="cuda").bfloat16(), torch.randn(1, tokens, 1, 8, device="cuda")
    adt, dt, trap = (sign * torch.rand(1, 1, tokens, device="cuda") for sign in (-1, 1, 1))
    biases = torch.randn(2, 1, 16, device="cuda")
    offsets = torch.tensor([0, tokens][: 1 + bool(tokens)], dtype=torch.int32, device="cuda")
    try:
        y = mamba3_siso_combined(q, k, v, adt, dt, trap, *biases, angles, None, None, cu_seqlens=offsets)
    except AssertionError as error:
        return f"AssertionError: {error}"
    return f"y of {y.shape[1]} tokens"


outcomes = {tokens: call(tokens) for tokens in (16, 0)}
for tokens, outcome in outcomes.items():
    print(f"{tokens} tokens: {outcome}")
sys.exit(outcomes[0].startswith("AssertionError") and not outcomes[16].startswith("AssertionError"))
