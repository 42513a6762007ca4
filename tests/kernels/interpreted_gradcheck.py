"""The kernels as a user calls them, interpreted: within the budget in values and gradients, without preparation."""

import pytest

import packproof
from packproof import kernels
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep


@sweep("dtype", sample=["float32"], rest=["bfloat16"])
@pytest.mark.parametrize("op", sorted({*dir(kernels)} & {*OPS} - {"linear_attention", "retention"}))  # simple_gla's
def test_kernels_are_within_the_budget_with_the_repair_that_they_install(op: str, dtype: str) -> None:
    sample = draw(OPS[op], Case((3, 0, 9), dtype, tuple(OPS[op].sizes[0].items())))
    packproof.gradcheck(getattr(kernels, op), sample.inputs, cu_seqlens=sample.cu_seqlens, op=op)
