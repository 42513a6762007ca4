"""mamba-ssm's SSD at 2e16fc30: with seq_idx the gradient of B multiplies by a clamped exponent in place of its exp.

One sequence is a pack, too: its gradients with seq_idx have to be those without. `mamba_ssm/__init__.py` has to be
empty, since it imports compiled extensions.
"""

import os
import sys
from contextlib import nullcontext
from types import ModuleType

os.environ["TRITON_INTERPRET"] = "1"
sys.modules["selective_scan_cuda"] = ModuleType("selective_scan_cuda")

import torch
from triton.runtime.autotuner import Autotuner

Autotuner.run = lambda self, *a, **options: self.fn.run(*a, **options, **self.configs[0].kwargs)  # tuning needs a GPU
Autotuner.best_config = property(lambda self: self.configs[0])
torch.cpu.device = torch.cuda.device = lambda _: nullcontext()
torch.cuda.get_device_properties = lambda _: type("Device", (), {"multi_processor_count": 1})
from mamba_ssm.ops.triton.ssd_chunk_state import _chunk_state_bwd_db as chunk_state_bwd_db

tokens, heads, width, states, chunk = 32, 1, 16, 16, 16
torch.manual_seed(0)
x, dt = torch.randn(1, tokens, heads, width), torch.rand(1, heads, tokens // chunk, chunk)
sums, dstates = -dt.cumsum(-1), torch.randn(1, tokens // chunk, heads, width, states)
plain = chunk_state_bwd_db(x, dt, sums, dstates)
packed = chunk_state_bwd_db(x, dt, sums, dstates, seq_idx=torch.zeros(1, tokens, dtype=torch.int32))
print(f"one sequence: with seq_idx the gradient of B is up to {float((plain - packed).abs().max()):.3g} off")
