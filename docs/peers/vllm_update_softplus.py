"""vLLM: the step of a server takes log(exp(dt) + 1) for softplus, which loses small steps."""

import torch
from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

n = 16
raw = torch.tensor([-4.0, -8.0, -12.0, -15.0, -17.0], device="cuda")
d = len(raw)
one, zero = torch.ones(d, device="cuda"), torch.zeros(d, device="cuda")
state, A, B = torch.zeros(1, d, n, device="cuda"), torch.zeros(d, n, device="cuda"), torch.ones(1, n, device="cuda")
y = torch.empty(1, d, device="cuda")
selective_state_update(state, one[None], raw[None], A, B, B, zero, dt_bias=zero, dt_softplus=True, out=y)
steps = torch.nn.functional.softplus(raw.double())  # what each state is after one token: dt B x, with B = x = 1
for dt, got, want in zip(raw.tolist(), state[0, :, 0].tolist(), steps.tolist(), strict=True):
    print(f"dt {dt:>5}: state {got:.3e}, off by {abs(got - want) / want:.0e}")
