"""For tests/ops/test_gdn.py and tests/ops/test_kda.py of flash-linear-attention: gates of heads that hardly forget."""

import pytest
import torch
from fla.ops.gated_delta_rule.gate import fused_gdn_gate, naive_gdn_gate
from fla.ops.kda.gate import fused_kda_gate, naive_kda_gate
from fla.utils import device

RAW = [20.0, 4.0, 0.0, -4.0, -8.0, -12.0, -15.0, -17.0, -30.0]


@pytest.mark.parametrize(
    ("fused", "naive", "width"), [(fused_gdn_gate, naive_gdn_gate, 0), (fused_kda_gate, naive_kda_gate, 64)]
)
def test_gates_of_small_values(fused, naive, width: int):
    raw = torch.tensor(RAW, device=device).view(1, -1, 1)
    raw = raw[..., None].repeat(1, 1, 1, width) if width else raw
    A_log = torch.zeros(1, device=device)
    torch.testing.assert_close(fused(raw, A_log), naive(raw, A_log), atol=0, rtol=1e-5)
