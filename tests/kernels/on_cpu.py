"""Run with TRITON_INTERPRET=1 by test_on_cpu.py: packproof's kernels as a user calls them, with nothing prepared."""

import packproof
from packproof import kernels
from packproof.properties.case import Case
from packproof.properties.ops import OPS
from packproof.properties.sample import draw

for op in ("causal_conv1d", "rope", "rope_qk", "selective_scan", "ssd"):
    for dtype in ("float32", "bfloat16"):
        sample = draw(OPS[op], Case((3, 0, 9), dtype, tuple(OPS[op].sizes[0].items())))
        packproof.gradcheck(getattr(kernels, op), sample.inputs, cu_seqlens=sample.cu_seqlens, op=op)
        print(op, dtype, "within the budget")
