"""Megatron-LM's PackedSeqParams at f89744b4: numbers of sequences for more rows than there are tokens.

Where padded offsets end past the number of tokens, a negative length is made 0, and the numbers are those of the padded
rows.
"""

import torch
from megatron.core.packed_seq_params import PackedSeqParams

offsets, padded = torch.tensor([0, 3, 6], dtype=torch.int32), torch.tensor([0, 4, 8], dtype=torch.int32)
params = PackedSeqParams("thd", cu_seqlens_q=offsets, cu_seqlens_q_padded=padded, total_tokens=6)
print("6 tokens:", params.seq_idx.tolist())
