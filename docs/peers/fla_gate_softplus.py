"""flash-linear-attention: the gates of the gated delta rule and KDA take log(1 + exp(g)) for softplus."""

import torch
from fla.ops.gated_delta_rule.gate import fused_gdn_gate
from fla.ops.kda.gate import fused_kda_gate

raw = torch.tensor([-4.0, -8.0, -12.0, -15.0, -17.0], device="cuda")
want = -torch.nn.functional.softplus(raw.double())
for gate, g in ((fused_gdn_gate, raw.view(1, -1, 1)), (fused_kda_gate, raw.view(1, -1, 1, 1).repeat(1, 1, 1, 64))):
    A_log = torch.zeros(1, device="cuda", requires_grad=True)
    got = gate(g, A_log).view(len(raw), -1)[:, 0]
    off = [f"{abs(x - y) / -y:.0e}" for x, y in zip(got.tolist(), want.tolist(), strict=True)]
    print(gate.__name__, "at", raw.tolist(), "is off by", *off)
