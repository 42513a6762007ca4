"""The table of `packproof bench fp8`, and the budget of rounded operands, which a scale of the whole pack breaks."""

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.bench.fp8 import measure_errors
from packproof.cli import main
from packproof.properties.bounds.budget import K_OP
from packproof.properties.bounds.magnitude_of_attention import attention as absolute

LENGTHS, BLOCK = (40, 0, 24), 16
CU_SEQLENS = torch.tensor([0, 40, 40, 64])


def raised(x: Tensor) -> Tensor:
    """x with 2^-13 of the largest value of its block more: rounding is off by 2^-4 of that at most."""
    blocks = [part for rows in x.split(LENGTHS) if len(rows) for part in rows.split(BLOCK)]
    return torch.cat([part + part.sign() * 2**-13 * part.abs().amax((0, 2), keepdim=True) for part in blocks])


def test_the_budget_of_rounded_operands() -> None:
    g = torch.Generator().manual_seed(0)
    for scale in (1.0, 1e6):
        q, k, v = torch.randn(3, 64, 2, 8, generator=g, dtype=torch.float64)
        q, v = q / 16, v.abs()  # sums that cancel little, of which the budget is a part
        v[:40] *= scale
        exact = refs.attention(q, k, v, cu_seqlens=CU_SEQLENS)
        budget = K_OP * 2**-4 * absolute(raised(q), raised(k), raised(v), cu_seqlens=CU_SEQLENS)
        kept = refs.attention_fp8_naive(q, k, v, cu_seqlens=CU_SEQLENS, block=BLOCK)
        assert ((kept - exact).abs() <= budget).all()
        whole = refs.dequantize_fp8(*refs.quantize_fp8(v, cu_seqlens=torch.tensor([0, 64]), block=64)).double()
        mixed = refs.attention(q, k, whole, cu_seqlens=CU_SEQLENS)
        assert ((mixed - exact).abs() <= budget).all() == (scale == 1.0)


@pytest.mark.proof
def test_the_table(capsys) -> None:
    rows = {row.inputs: row for row in measure_errors(tokens=1024)}
    assert rows["0.1 % outliers"].ratio > 1.1
    assert abs(rows["N(0, 1)"].ratio - 1) < 0.1
    assert rows["q and k of 1 and -1"].ratio < 0.6
    assert main.run(["bench", "fp8", "--tokens", "64"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("e4m3 q, k and v in blocks of 128 tokens; 64 tokens")
    assert [line.rpartition("%")[0].count("%") for line in printed[3:]] == [1, 2, 2, 1]
