"""The kernel of quantize_fp8 in the interpreter: the reference's bits."""

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError
from packproof.kernels.quantize_fp8 import quantize_fp8
from tests.kernels.cases import LAYOUTS, BatchingSanitizer, normal, offsets, same_bits, scattered


def same(x: Tensor, lengths: list[int], block: int = 16) -> None:
    with BatchingSanitizer([x]):
        values, scales = quantize_fp8(x, cu_seqlens=offsets(lengths), block=block)
    wanted, wanted_scales = refs.quantize_fp8(x, cu_seqlens=offsets(lengths), block=block)
    same_bits(scales, wanted_scales, f"scales of {lengths}")
    got, want = values.view(torch.uint8), wanted.view(torch.uint8)
    nan = want & 0x7F == 0x7F  # of either sign
    assert torch.equal(torch.where(nan, got & 0x7F, got), torch.where(nan, 0x7F, want)), f"values of {lengths}"


def test_it_has_the_bits_of_the_reference() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for lengths in LAYOUTS:
            x = normal(sum(lengths) + 2, 2, 20) * 10 ** (4 * normal(sum(lengths) + 2, 1, 1).tanh())
            same(x.to(dtype), lengths)


def test_every_number_of_16_bits_is_rounded_to_the_nearest() -> None:
    """Each bf16 beside 448, which sets the scale to 1; ties go to even, and what lies below goes to zero."""
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    numbers = numbers[numbers.abs() <= 448]
    numbers = torch.cat([numbers, numbers.new_zeros(-len(numbers) % 1024)]).view(16, -1)
    x = torch.cat([numbers, torch.full((16, 1), 448.0, dtype=torch.bfloat16)], 1)[:, None]
    same(x, [16])


def test_what_cannot_be_scaled() -> None:
    numbers = [448.0, 449.0, 0.0, -0.0, 2.0**-130, 2.0**-149, 3e38, float("nan"), float("-inf")]
    x = torch.tensor([[n, n / 3 if n == 448 else 500.0] for n in numbers])[:, None]
    same(x, [1] * len(numbers))


def test_takes_any_strides() -> None:
    x = normal(20, 2, 16)
    same(scattered(x), [17, 1])
    same(x.transpose(0, 1).contiguous().transpose(0, 1), [3, 17])


@pytest.mark.proof
def test_compiles_in_one_graph_and_refuses_other_blocks() -> None:
    x, cu_seqlens = normal(5, 1, 16), offsets([5])
    compiled = torch.compile(quantize_fp8, backend="aot_eager", fullgraph=True)
    same_bits(compiled(x, cu_seqlens=cu_seqlens)[1], quantize_fp8(x, cu_seqlens=cu_seqlens)[1], "compiled")
    with pytest.raises(ArgumentError, match="block is 24 but a power of two from 16 to 128 was expected"):
        quantize_fp8(x, cu_seqlens=cu_seqlens, block=24)
    with pytest.raises(ArgumentError, match="x is float64 but float32, bfloat16 or float16 was expected"):
        quantize_fp8(x.double(), cu_seqlens=cu_seqlens)
