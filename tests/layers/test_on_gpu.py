"""The blocks on the kernels that a GPU runs: proven by check_module, and equal to their references."""

from functools import partial

import pytest
import torch
from torch import nn

from packproof import kernels
from packproof.layers import AttentionBlock, Mamba2Block, MambaBlock
from packproof.models.check import check_module
from tests.layers.blocks import FORMS, beyond_rounding, run_block
from tests.layers.hybrid import Hybrid

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WIDTH, CHUNK = 64, 64
ATTENTION = partial(AttentionBlock, num_heads=4, num_heads_kv=2, d_conv=4, rotary_emb_dim=8)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "kind", [MambaBlock, partial(Mamba2Block, headdim=32), ATTENTION], ids=["mamba", "mamba2", "attention"]
)
def test_a_block_isolates_and_equals_each_sequence_alone(
    kind: type[nn.Module], dtype: torch.dtype, recompute: bool
) -> None:
    block = kind(WIDTH, recompute=recompute).to("cuda", dtype)
    block.chunk_size = CHUNK  # type: ignore[assignment]  # of the kernels: layouts are drawn around it
    verdicts = check_module(block, convention="cu_seqlens", inputs=WIDTH)
    assert [verdict.status for verdict in verdicts] == ["passed", "passed", "passed"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_hybrid_isolates_and_equals_each_document_alone(dtype: torch.dtype) -> None:
    verdicts = check_module(Hybrid().to("cuda", dtype), convention="cu_seqlens")
    assert [verdict.status for verdict in verdicts] == ["passed", "passed", "passed"]


@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_the_equations(name: str) -> None:
    form = FORMS[name]
    assert beyond_rounding(form, run_block(form.block(kernels).cuda(), torch.float32)) == {}
