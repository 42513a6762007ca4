"""mamba-ssm: a step of a server without D, or without a bias of dt, raises, though both are optional."""

import torch
from mamba_ssm.ops.triton.selective_state_update import selective_state_update

batch, d, n = 2, 64, 16
state, x, dt = (torch.rand(batch, d, *more, device="cuda") for more in ((n,), (), ()))
A, B, C = -torch.rand(d, n, device="cuda"), torch.rand(batch, n, device="cuda"), torch.rand(batch, n, device="cuda")
vector = torch.rand(d, device="cuda")
for given in ({"D": vector, "dt_bias": vector}, {"D": vector}, {"dt_bias": vector}):
    try:
        selective_state_update(state.clone(), x, dt, A, B, C, **given)
        print(*given, "given: no error")
    except TypeError as error:
        print(*given, "given: TypeError", error)
