"""flash-linear-attention's DeltaFormer at 71ed1896: strides are ignored, and backward reads rows past the values.

Kernels take rows of q for contiguous ones, so that a slice gives other values. Backward loads whole blocks of values
without a check of their end; a select drops what it reads past them, if the memory is there to be read.
"""

import os
from contextlib import nullcontext

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
from triton.runtime import interpreter


def first_config(configs, **_):
    """In place of the autotuner, which needs a GPU."""
    return triton.heuristics({name: lambda _, value=value: value for name, value in configs[0].kwargs.items()})


triton.autotune = first_config
torch.cpu.device = torch.cuda.device = lambda _: nullcontext()
from fla.ops.deltaformer import parallel

tokens = 20
q, k, v = torch.randn(3, tokens, 1, 16).bfloat16()
beta, offsets = torch.rand(tokens, 1).bfloat16(), torch.tensor([0, tokens])
wide = torch.cat([q, torch.zeros(tokens, 1, 3).bfloat16()], -1)
same, sliced = (
    parallel.ParallelDeltaformerFunction.apply(*(x[None] for x in (queries, k, v, beta)), 512, offsets)
    for queries in (q, wide[..., :16])
)
print(f"q as a slice: values differ by {(same - sliced).abs().max():.2g}")

buffer = torch.zeros(64, 1, 16).bfloat16()  # the values, and memory past them
values, end = buffer[:tokens], buffer.data_ptr() + buffer.nbytes
past_values, load = set(), interpreter.InterpreterBuilder.create_masked_load


def watched_load(self, addresses, mask, *arguments):
    read = addresses.data[mask.data]
    past_values.update(read[(read >= values.data_ptr() + values.nbytes) & (read < end)].tolist())
    return load(self, addresses, mask, *arguments)


interpreter.InterpreterBuilder.create_masked_load = watched_load
parallel.parallel_deltaformer_bwd_qk(q, k, values, torch.zeros(tokens, 1), v, 0.25, 0.36, beta)
print(f"backward reads {len(past_values)} elements past the values, which have {values.numel()}")
