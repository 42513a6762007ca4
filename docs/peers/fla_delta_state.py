"""flash-linear-attention: the recurrent delta rule has no backward pass from a state that needs no gradient."""

import torch
from fla.ops.delta_rule import fused_recurrent_delta_rule

T, H, K = 16, 2, 64
q, k, v = ((torch.randn(1, T, H, K, device="cuda") / 8).requires_grad_() for _ in range(3))
beta = torch.rand(1, T, H, device="cuda")
state = torch.zeros(1, H, K, K, device="cuda")  # such as the segment before ended with, detached
for needed in (True, False):
    y, _ = fused_recurrent_delta_rule(q, k, v, beta, initial_state=state.clone().requires_grad_(needed))
    try:
        y.sum().backward()
        print("a gradient of the state is needed:", needed, "- no error")
    except Exception as error:
        print("a gradient of the state is needed:", needed, "-", type(error).__name__)
