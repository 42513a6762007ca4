"""mamba-ssm: from 2^31 elements of a pool of states on, the step of a server updates memory before the pool."""

import torch
from mamba_ssm.ops.triton.selective_state_update import selective_state_update

heads, dim, n = 64, 64, 128  # 2^19 elements a slot
memory = torch.zeros(8194, heads, dim, n, device="cuda", dtype=torch.bfloat16)  # 8 GiB
pool = memory[4096:]
x, B = torch.ones(1, heads, dim, device="cuda"), torch.ones(1, 1, n, device="cuda")
A, zero = -torch.ones(heads, dim, n, device="cuda"), torch.zeros(heads, dim, device="cuda")
for slot in (4095, 4096):
    memory[:, 0, 0, 0] = 0
    index = torch.tensor([slot], device="cuda", dtype=torch.int32)
    selective_state_update(pool, x, x, A, B, B, zero, dt_bias=zero, state_batch_indices=index)
    updated = (memory[:, 0, 0, 0].nonzero().flatten() - 4096).tolist()
    print(f"slot {slot} of {len(pool)}: updated are {updated}, counted from the start of the pool")
