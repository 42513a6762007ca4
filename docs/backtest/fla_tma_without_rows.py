"""flash-linear-attention's triangular solve at 6b7df989 and 721a205a: a tile of no rows is an illegal instruction.

Chunks of a pack with an empty sequence are numbered as chunks of the sequence before (fla_empty_sequences.py). Where
that is the empty one, the kernel makes a TMA descriptor of no rows, which the hardware refuses. It needs an H100.
"""

import os
import sys

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"

import torch
from fla.ops.utils.solve_tril import solve_tril

for offsets in ([0, 5, 12], [0, 0, 5]):
    A = torch.zeros(1, offsets[-1], 1, 64, device="cuda")
    try:
        inverse = solve_tril(A, cu_seqlens=torch.tensor(offsets, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        print(f"offsets {offsets}: {str(error).splitlines()[0]}")
        sys.exit(1)
    print(f"offsets {offsets}: the diagonal of (I + 0)^-1 has the sum {float(inverse.sum()):g} of {offsets[-1]}")
