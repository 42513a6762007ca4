"""Products by a warpgroup, as wgmma.cuh says, from tiles of the copy engine: on the CPU, and on a Hopper GPU."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.kernels.emulator.trials.running import launch, on_both, tensor_map

M = K = 64
SHARED = 2 * 64 * 128 * 2 + 2048


class Form(NamedTuple):
    n: int
    dtype: torch.dtype
    m_contiguous: bool
    n_contiguous: bool
    swizzle: int


FORMS = (
    Form(16, torch.bfloat16, False, False, 128),
    Form(32, torch.bfloat16, False, False, 128),
    Form(64, torch.float16, False, False, 128),
    Form(96, torch.bfloat16, False, False, 128),
    Form(128, torch.bfloat16, True, True, 128),
    Form(64, torch.bfloat16, False, True, 128),
    Form(64, torch.bfloat16, False, False, 64),
    Form(64, torch.bfloat16, False, False, 32),
    Form(64, torch.bfloat16, True, True, 64),
    Form(64, torch.float16, True, True, 32),
    Form(128, torch.bfloat16, True, False, 128),
    Form(32, torch.float16, False, True, 64),
)


def operands(form: Form, device: str) -> tuple[Tensor, Tensor]:
    """A [M, K] and B [N, K] of small integers, whose product is exact in any order of summation."""
    generator = torch.Generator().manual_seed(form.n + form.swizzle)
    a, b = (torch.randint(-4, 5, (rows, K), generator=generator) for rows in (M, form.n))
    return a.to(device, form.dtype), b.to(device, form.dtype)


def product(form: Form, a: Tensor, b: Tensor) -> Tensor:
    """What the kernel makes of A and B."""
    a, b = a.mT.contiguous() if form.m_contiguous else a, b.mT.contiguous() if form.n_contiguous else b
    maps = [tensor_map(x, (x.shape[0], form.swizzle // 2), form.swizzle) for x in (a, b)]
    out = torch.full((M, form.n), torch.nan, device=a.device)
    options = {"a": maps[0], "b": maps[1], "out": out, "form": FORMS.index(form)}
    launch("products.cu", "products", 128, SHARED, a.device.type, **options)
    return out


@on_both
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_product_of_integers_is_exact(form: Form, device: str) -> None:
    a, b = operands(form, device)
    assert torch.equal(product(form, a, b), a.float() @ b.float().mT)
