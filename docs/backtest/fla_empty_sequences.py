"""flash-linear-attention in 2025: an empty sequence in a pack moves chunks into the sequences before their own.

The chunks of a pack are numbered by counting first chunks, and an empty sequence has none. Kernels then compute tokens
of one sequence twice and leave those of another unwritten. At the commits e2a67879, 7046e319, 3d70f7de, 6a501c8e,
c7421244, b690b349, b1d76699, ca3905f0, 769035e9 and 46c5f6be; a2fc2e91 numbers chunks in the same way.
"""

import torch

try:
    from fla.ops.utils import prepare_chunk_indices
except ImportError:
    from fla.ops.common.utils import prepare_chunk_indices

offsets, chunk = torch.tensor([0, 0, 5, 5, 5, 12, 12]), 16
expected = [[j, k] for j, n in enumerate(offsets.diff().tolist()) for k in range(-(-n // chunk))]
print("(sequence, chunk):", prepare_chunk_indices(offsets, chunk).tolist(), "expected", expected)
