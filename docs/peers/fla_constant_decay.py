"""flash-linear-attention: with a constant decay, a sequence whose last chunk is short ends in a state of NaN."""

import torch
from fla.ops.lightning_attn import chunk_lightning_attn

H, K, lengths = 8, 64, (64, 16, 60)
q, k, v = torch.randn(3, 1, sum(lengths), H, K, device="cuda", dtype=torch.bfloat16)
cu_seqlens = torch.tensor([0, 64, 80, 140], device="cuda", dtype=torch.int32)
call = {"layer_idx": 0, "num_layers": 24, "output_final_state": True, "cu_seqlens": cu_seqlens}
_, states = chunk_lightning_attn(q, k, v, **call)
y, _ = chunk_lightning_attn(q, k, v, **call, initial_state=states)  # each sequence goes on
rows = y[0].split(lengths)
for length, state, row in zip(lengths, states, rows, strict=True):
    heads = state.isnan().any(-1).any(-1).nonzero().flatten().tolist()
    print(f"{length} tokens: the state is NaN in heads {heads}; then {int(row.isnan().any(-1).sum())} outputs are")
