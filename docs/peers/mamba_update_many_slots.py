"""mamba-ssm: a request in a slot past 2^31 elements of the pool updates the state of another request."""

import torch
from mamba_ssm.ops.triton.selective_state_update import selective_state_update

h, p, n, slot = 64, 64, 128, 8192  # slots of 2^19 elements, so that slot 8192 starts at 2^32
pool = torch.zeros(slot + 1, h, p, n, device="cuda", dtype=torch.bfloat16)
x, B = torch.ones(1, h, p, device="cuda"), torch.ones(1, 1, n, device="cuda")
dt, A, D = torch.ones(1, h, p, device="cuda"), torch.zeros(h, p, n, device="cuda"), torch.zeros(h, p, device="cuda")
indices = torch.tensor([slot], device="cuda", dtype=torch.int32)
selective_state_update(pool, x, dt, A, B, B, D, dt_bias=torch.zeros_like(D), state_batch_indices=indices)
written = [j for j in (0, slot) if pool[j].any()]
print("the request of slot", slot, "updated slot", *written)
