"""Each wrapper of hopper.cuh does what its line says."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.kernels.emulator.trials.running import launch, on_both, tensor_map

run = partial(launch, "wrappers.cu")


def integers(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


@on_both
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_of_a_warp(dtype: torch.dtype, transposed: bool, device: str) -> None:
    a, b = integers(16, 16, device=device, dtype=dtype), integers(8, 16, device=device, dtype=dtype)
    d, rows = torch.full((16, 8), torch.nan, device=device), 11
    as_given = {"a": a.mT.contiguous(), "b": b.mT.contiguous()} if transposed else {"a": a, "b": b}
    options = {"rows": rows, "transposed": transposed, "half": dtype == torch.float16}
    run("products_of_a_warp", 32, 0, device, d=d, **as_given, **options)
    a = a.clone()
    (a.mT if transposed else a)[rows:] = 0
    assert torch.equal(d, a.float() @ b.float().mT)


@on_both
def test_matrices_are_stored_as_they_are_loaded_or_transposed(device: str) -> None:
    x = torch.arange(256, dtype=torch.int16, device=device).view(16, 16)
    for transposed in (False, True):
        to = torch.zeros_like(x)
        run("stores_of_matrices", 32, 0, device, **{"from": x}, to=to, transposed=transposed)
        blocks = x.view(2, 8, 2, 8).permute(0, 3, 2, 1).reshape(16, 16) if transposed else x
        assert torch.equal(to, blocks)


def swizzled(rows: Tensor, swizzle: int) -> Tensor:
    """Rows of `swizzle` bytes as they lie in shared memory: 16-byte parts exchanged among those of 8 rows."""
    out = torch.empty_like(rows)
    for r in range(len(rows)):
        for part in range(swizzle // 16):
            to = part ^ (r % 8 * swizzle // 128)
            out[r, 16 * to : 16 * to + 16] = rows[r, 16 * part : 16 * part + 16]
    return out


@on_both
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("start", [(0, 0, 0), (0, 1, 5), (-3, 2, 12), (7, -1, -9)])
def test_a_box_of_a_tensor(swizzle: int, start: tuple[int, int, int], device: str) -> None:
    if device == "cuda" and start[0]:
        pytest.skip("a box that began 3 columns before its tensor ended in an illegal instruction on an H200")
    columns = (swizzle or 48) // 2
    whole = 1 + torch.arange(20 * 3 * 72, dtype=torch.int16, device=device).view(20, 3, 72)
    tensor, box = whole[:, :, 3 * 8 : 3 * 8 + 40], (16, 1, columns)
    to, seen = torch.zeros_like(whole)[:, :, 24:64], torch.zeros(16 * columns * 2, dtype=torch.uint8, device=device)
    maps = {"from": tensor_map(tensor, box, swizzle), "to": tensor_map(to, box, swizzle)}
    coordinates = dict(zip(("c0", "c1", "c2"), start, strict=True))
    run("boxes", 32, 10240, device, **maps, bytes=seen, size=len(seen), axes=3, **coordinates)
    padded = torch.zeros(60, 9, 160, dtype=torch.int16, device=device)
    padded[20:40, 3:6, 60:100] = tensor
    c, j, i = start
    rows = padded[20 + i : 36 + i, 3 + j, 60 + c : 60 + c + columns].contiguous().view(torch.uint8)
    assert torch.equal(seen.view(16, -1), swizzled(rows, swizzle) if swizzle else rows)
    expected = torch.zeros_like(padded)
    expected[20 + i : 36 + i, 3 + j, 60 + c : 60 + c + columns] = 1
    assert torch.equal(to, tensor * expected[20:40, 3:6, 60:100])


@on_both
def test_a_box_of_two_axes(device: str) -> None:
    x = torch.arange(40 * 16, dtype=torch.int16, device=device).view(40, 16)
    to, seen = torch.zeros_like(x), torch.zeros(16, 16, dtype=torch.int16, device=device)
    maps = {"from": tensor_map(x, (16, 16), 0), "to": tensor_map(to, (16, 16), 0)}
    run("boxes", 32, 10240, device, **maps, bytes=seen, size=512, axes=2, c0=0, c1=30, c2=0)
    assert torch.equal(seen[:10], x[30:])
    assert not seen[10:].any()
    assert torch.equal(to[30:], x[30:])
    assert not to[:30].any()


@on_both
def test_a_warp_arrives_at_a_barrier_that_another_waits_at(device: str) -> None:
    x = torch.arange(160.0, device=device)
    to = torch.zeros_like(x)
    run("hands_over", 64, 0, device, **{"from": x}, to=to, rounds=5)
    assert torch.equal(to, x + 1)


@on_both
def test_pairs_and_logarithms(device: str) -> None:
    x = torch.logspace(-3, 4, 64, device=device) * torch.tensor([1.0, -1.0], device=device).repeat(32)
    pairs = {name: torch.zeros(32, dtype=torch.int32, device=device) for name in ("bf16", "fp16")}
    logarithm = torch.zeros(32, device=device)
    run("arithmetic", 32, 0, device, **{"from": x}, **pairs, logarithm=logarithm)
    assert torch.equal(pairs["bf16"].view(torch.bfloat16), x.bfloat16())
    assert torch.equal(pairs["fp16"].view(torch.float16), x.half())
    exact = x[::2].double().log2()
    assert ((logarithm - exact).abs() <= 2**-22 * exact.abs().clamp(min=1)).all()
