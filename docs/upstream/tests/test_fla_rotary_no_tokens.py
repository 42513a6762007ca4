"""For tests/modules/test_rotary.py of flash-linear-attention: a pack without tokens."""

import pytest
import torch
from fla.modules.rotary import rotary_embedding
from fla.utils import device


@pytest.mark.parametrize("cu_seqlens", [pytest.param([0] * n, id=f"{n - 1} sequences") for n in (1, 2, 4)])
@pytest.mark.parametrize("dtype", [torch.float32])
def test_rotary_varlen_without_tokens(cu_seqlens: list[int], dtype: torch.dtype):
    x = torch.randn(1, 0, 2, 8, device=device, dtype=dtype).requires_grad_()
    table = torch.rand(4, 4, device=device, dtype=dtype)
    cu_seqlens = torch.tensor(cu_seqlens, device=device, dtype=torch.int32)
    starts = torch.zeros_like(cu_seqlens[1:])

    y = rotary_embedding(x, table.cos(), table.sin(), cu_seqlens=cu_seqlens, seqlen_offsets=starts)
    y.sum().backward()

    assert y.shape == x.shape
    assert x.grad.shape == x.shape
