"""flash-linear-attention's sparse attention at f0e213db: the backward pass reads before its output past 2^31 elements.

The fix made offsets of NSA's own kernels 64 bits wide, but not those of the kernel that sums each row of the output
times its gradient, which NSA shares with parallel attention. Here the kernel's program of the row at 2^31 elements
runs without a load: the addresses that it would read are printed, in elements from the begin of the output.
"""

import os
import sys
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from fla.ops.attn.parallel import parallel_attn_bwd_preprocess
from triton.runtime.interpreter import TensorHandle, interpreter_builder

WIDTH = 128
ROW = 2**31 // WIDTH
begins: list[int] = []


def load(pointers: TensorHandle, _mask: TensorHandle, other: TensorHandle, *_: object) -> TensorHandle:
    """Zeros, without a read."""
    begins.append(int(pointers.data.astype(np.int64).min()) - output.data_ptr())
    return other


torch.cpu.device = torch.cuda.device = torch.device  # type: ignore[attr-defined, assignment, misc]
interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)  # they wrap on a GPU
interpreter_builder.create_get_program_id = lambda axis: TensorHandle(np.array([ROW], dtype=np.int32), tl.int32)
interpreter_builder.create_masked_load = load
interpreter_builder.create_store = interpreter_builder.create_masked_store = lambda *_: None
output = torch.zeros(1, 1, 1, WIDTH, dtype=torch.float16)
parallel_attn_bwd_preprocess(output, output)
elements = [begin // output.element_size() for begin in begins]
print(f"row {ROW} of {WIDTH} elements: the output and its gradient are read at {elements}, expected {ROW * WIDTH}")
sys.exit(elements[0] != ROW * WIDTH)
