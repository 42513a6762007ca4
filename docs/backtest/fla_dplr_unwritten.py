"""flash-linear-attention's generalised delta rule at a2fc2e91: a kernel reads elements that no kernel wrote.

A chunk of n tokens writes n columns of its products, and the next kernel loads all of them. A select drops those past
the diagonal, so that no result depends on them.
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
from fla.ops.generalized_delta_rule.dplr import chunk_A_fwd, wy_fast_fwd

torch.utils.deterministic.fill_uninitialized_memory = True
torch.use_deterministic_algorithms(True)  # new memory is NaN
tokens = 3
q, k, a, b, g = torch.randn(5, 1, tokens, 1, 16)
offsets, chunks = torch.tensor([0, tokens]), torch.tensor([[0, 0]])
products = chunk_A_fwd.chunk_fwd_intra_dplr_fn(q, k, a, b, -g.abs(), -g.abs(), 1.0, 16, offsets, chunks, False)[0]
print(f"of {tuple(products.shape)} products {int(products.isnan().sum())} were never written")
unwritten = {products.data_ptr() + 4 * i for i in products.flatten().isnan().nonzero().flatten().tolist()}
load, read = interpreter.InterpreterBuilder.create_masked_load, set()


def watched_load(self, addresses, mask, *arguments):
    read.update(addresses.data[mask.data].tolist())
    return load(self, addresses, mask, *arguments)


interpreter.InterpreterBuilder.create_masked_load = watched_load
inverses = [torch.zeros(1, tokens, 1, 16) for _ in range(2)]
for matrix, inverse in zip((products, products.nan_to_num(7.0)), inverses, strict=True):
    wy_fast_fwd.fwd_prepare_wy_repr_kernel_chunk32[1, 1](
        matrix, inverse, offsets, chunks, T=tokens, H=1, BT=16, BC=16, HEAD_FIRST=False
    )
print(f"the next kernel read {len(read & unwritten)} of them")
print("its result is the same with other values there:", torch.equal(*inverses))
