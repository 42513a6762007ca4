"""For tests/ops and tests/modules/test_rotary.py of flash-linear-attention: boundaries edited in place."""

import pytest
import torch
from fla.modules.rotary import rotary_embedding
from fla.ops.utils.index import prepare_chunk_indices, prepare_chunk_offsets
from fla.utils import assert_close, device


@pytest.mark.parametrize("prepare", [prepare_chunk_indices, prepare_chunk_offsets])
def test_metadata_follows_an_edit_in_place(prepare):
    cu_seqlens = torch.tensor([0, 16, 16, 40], device=device)
    before = prepare(cu_seqlens, 16)
    assert prepare(cu_seqlens, 16) is before  # an unchanged tensor is still a hit
    cu_seqlens.copy_(torch.tensor([0, 3, 20, 40]))
    assert torch.equal(prepare(cu_seqlens, 16), prepare(cu_seqlens.clone(), 16))


def test_metadata_of_a_tensor_made_in_inference_mode():
    with torch.inference_mode():  # such tensors have no version counter
        cu_seqlens = torch.tensor([0, 16, 40], device=device)
        assert torch.equal(prepare_chunk_indices(cu_seqlens, 16), prepare_chunk_indices(cu_seqlens.clone(), 16))


@pytest.mark.parametrize(("T", "H", "D"), [pytest.param(33, 2, 8, id="T33-H2-D8")])
def test_rotary_varlen_follows_an_edit_in_place(T: int, H: int, D: int):
    torch.manual_seed(42)
    x, angle = torch.randn(1, T, H, D, device=device), torch.rand(T, D // 2, device=device)
    cu_seqlens = torch.tensor([0, 16, 16, T], device=device, dtype=torch.int32)
    starts = torch.zeros(3, device=device, dtype=torch.int32)

    def rotate(boundaries: torch.Tensor) -> torch.Tensor:
        return rotary_embedding(x, angle.cos(), angle.sin(), cu_seqlens=boundaries, seqlen_offsets=starts)

    rotate(cu_seqlens)
    cu_seqlens.copy_(torch.tensor([0, 16, 32, T]))
    assert_close("y", rotate(cu_seqlens.clone()), rotate(cu_seqlens), 1e-6)
