"""Products by a warpgroup, as wgmma.cuh says, from tiles of the copy engine: on the CPU, and on a Hopper GPU."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from packproof.kernels import cuda
from tests.kernels.emulator import compile as emulator

SOURCE = str(Path(__file__).parent / "products.cu")
M = K = 64
SHARED = 2 * 64 * 128 * 2 + 2048
MACROS = (("TOKEN", "BF16"),)
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


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


def operands(form: Form, device: torch.device) -> tuple[Tensor, Tensor]:
    """A [M, K] and B [N, K] of small integers, whose product is exact in any order of summation."""
    generator = torch.Generator().manual_seed(form.n + form.swizzle)
    a, b = (torch.randint(-4, 5, (rows, K), generator=generator) for rows in (M, form.n))
    return a.to(device, form.dtype), b.to(device, form.dtype)


def product(form: Form, a: Tensor, b: Tensor) -> Tensor:
    """What the kernel makes of A and B."""
    on_cpu = a.device.type == "cpu"
    kernels = emulator.Emulated(SOURCE, MACROS) if on_cpu else cuda.kernels(SOURCE, a.device, MACROS)
    make = emulator.tensor_map if on_cpu else cuda.tensor_map
    a, b = a.mT.contiguous() if form.m_contiguous else a, b.mT.contiguous() if form.n_contiguous else b
    maps = [make(x, (x.shape[0], form.swizzle // 2), form.swizzle) for x in (a, b)]
    out = torch.full((M, form.n), torch.nan, device=a.device)
    arguments = {"a": maps[0], "b": maps[1], "out": out, "form": FORMS.index(form)}
    kernels.launch("products", 1, 128, SHARED, arguments)
    return out


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_product_of_integers_is_exact(form: Form) -> None:
    a, b = operands(form, torch.device("cpu"))
    assert torch.equal(product(form, a, b), a.float() @ b.float().mT)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_product_of_integers_is_exact_on_a_gpu(form: Form) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    a, b = operands(form, torch.device("cuda", 0))
    assert torch.equal(product(form, a, b), a.float() @ b.float().mT)
