"""flash-linear-attention: a step of KDA with the gate inside forgets nothing where the gate is small."""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

device = "cuda" if torch.cuda.is_available() else "cpu"
raw = torch.tensor([-4.0, -8.0, -12.0, -15.0, -17.0], device=device)  # of five requests, a token each
n, width = len(raw), 16
rates = 1 / torch.nn.functional.softplus(raw.double())  # A = exp(A_log), so that each state decays by exp(-1)
wrong = False
for value, rate in zip(raw.tolist(), rates.tolist(), strict=True):
    q, k, v = (torch.zeros(1, 1, 1, width, device=device) for _ in range(3))
    g, beta = torch.full((1, 1, 1, width), value, device=device), torch.zeros(1, 1, 1, device=device)
    A_log = torch.tensor([rate], device=device, dtype=torch.float64).log().float()
    states = torch.ones(1, 1, width, width, device=device)
    offsets, slots = (torch.tensor(x, device=device, dtype=torch.int32) for x in ([0, 1], [0]))
    fused_recurrent_kda_fwd(
        q, k, v, g, beta, A_log, None, states, 1.0, cu_seqlens=offsets, ssm_state_indices=slots, use_gate_in_kernel=True
    )
    off = abs(float(states[0, 0, 0, 0]) / torch.tensor(-1.0).double().exp().item() - 1)
    print(f"g {value:>5}: the state is {float(states[0, 0, 0, 0]):.4f} of what it was, off by {off:.0e}")
    wrong |= off > 1e-4
sys.exit(wrong)
