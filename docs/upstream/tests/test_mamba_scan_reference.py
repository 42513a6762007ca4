"""For tests/ops/test_selective_scan.py of mamba: the gate of the reference is as exact as that of the kernel."""

import pytest
import torch
from mamba_ssm.ops.selective_scan_interface import selective_scan_ref

device = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("itype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seqlen", [128])
def test_selective_scan_ref_gates_in_fp32(seqlen, itype):
    torch.random.manual_seed(0)
    dim, dstate = 4, 8
    u, z, dy = (torch.randn(1, dim, seqlen, device=device).to(itype) for _ in range(3))
    delta = (0.5 * torch.rand(1, dim, seqlen, device=device)).to(itype)
    B, C = (torch.randn(1, dstate, seqlen, device=device).to(itype) for _ in range(2))
    A = (-0.5 * torch.rand(dim, dstate, device=device)).requires_grad_()

    (dA,) = torch.autograd.grad(selective_scan_ref(u, delta, A, B, C, z=z), A, dy)
    (expected,) = torch.autograd.grad(selective_scan_ref(u, delta, A, B, C, z=z.float()), A, dy.float())
    # the same values: all that may differ is the rounding of the output, which dA does not see
    torch.testing.assert_close(dA, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())
