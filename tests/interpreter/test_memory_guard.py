"""Poison and canaries: fresh buffers hold the pattern, lie between canaries, and behave like the plain allocation."""

import ctypes

import numpy as np
import pytest
import torch

from packproof.base.errors import KernelFault
from packproof.interpreter.memory_guard import POISON, Guard, fill_poison, is_poison

DTYPES = list(POISON)


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_recognised_and_nothing_else_is(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 4, dtype=dtype).t()
    assert not is_poison(tensor).any()
    fill_poison(tensor[1:])
    assert is_poison(tensor)[1:].all()
    assert not is_poison(tensor)[0].any()
    if dtype.is_floating_point:
        assert tensor[1:].isnan().all()
        assert not is_poison(torch.full((2,), float("nan"), dtype=dtype)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_agrees_with_torch(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    fill_poison(tensor[1:])
    array = tensor.view(torch.int16).numpy().view(np.uint16) if dtype == torch.bfloat16 else tensor.numpy()
    assert np.asarray(is_poison(array)).tolist() == [False, True, True]
    assert np.asarray(is_poison(array.view(f"i{dtype.itemsize}"), dtype)).tolist() == [False, True, True]


def test_every_uninitialised_allocation_is_poisoned() -> None:
    like = torch.ones(2, 3, dtype=torch.bfloat16)
    with Guard():
        fresh = [
            torch.empty(2, 3),
            torch.empty((2, 3), dtype=torch.int32),
            torch.empty_like(like),
            torch.empty_strided((2, 3), (1, 2), dtype=torch.float64),
            like.new_empty(2, 3),
            like.new_empty_strided((2, 3), (3, 1)),
        ]
        zeros = [torch.zeros(2, 3), torch.zeros_like(like), like.new_zeros((2, 3))]
    assert all(is_poison(t).all() for t in fresh)
    assert fresh[3].stride() == (1, 2)
    assert [t.dtype for t in fresh[2:5]] == [torch.bfloat16, torch.float64, torch.bfloat16]
    assert all((t == 0).all() for t in zeros)


def test_torch_is_as_before_afterwards() -> None:
    before = (torch.empty, torch.zeros_like, "new_empty" in vars(torch.Tensor))
    with Guard():
        assert torch.empty is not before[0]
    assert (torch.empty, torch.zeros_like, "new_empty" in vars(torch.Tensor)) == before


def test_a_guarded_buffer_is_not_a_view_and_can_be_differentiated_through() -> None:
    with Guard():
        y = torch.empty(3)
        leaf = torch.empty(3, requires_grad=True)
    assert not y._is_view()
    assert leaf.is_leaf
    assert leaf.requires_grad
    x = torch.ones(3, requires_grad=True)
    y.copy_(x * 2)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bytes_away", "words"), [(0, "past the end of"), (-1, "before the start of"), (4000, "past")])
def test_a_write_outside_is_detected(dtype: torch.dtype, bytes_away: int, words: str) -> None:
    with Guard() as guard:
        y = torch.empty(5, 3, dtype=dtype)
    guard.check()
    end = y.data_ptr() + (y.numel() * y.itemsize if bytes_away >= 0 else 0)
    ctypes.memset(end + bytes_away, 0x11, 1)
    with pytest.raises(KernelFault, match=rf"wrote {words}.* a torch.empty of shape \(5, 3\)") as fault:
        guard.check()
    assert fault.value.kind == "memory"


def test_a_write_of_the_neighbours_canary_is_detected() -> None:
    with Guard() as guard:
        x, y = torch.empty(4), torch.empty(4)
    ctypes.memmove(y.data_ptr() + 16, x.data_ptr() + 16, 8)  # as a kernel does that copies too many elements
    with pytest.raises(KernelFault, match="past the end"):
        guard.check()


def test_reading_a_canary_gives_nan() -> None:
    for dtype in (d for d in DTYPES if d.is_floating_point):
        guard = Guard()
        for _ in range(130):
            fenced = guard.fence("x", (2,), (1,), dtype, torch.device("cpu"))
            assert fenced.buffer.view(dtype)[0].isnan()


def test_elements_are_the_kernels_own() -> None:
    with Guard() as guard:
        y = torch.empty(5, 3).fill_(2.0)
        empty = torch.empty(0, 4)
    guard.check()
    assert (y == 2).all()
    assert empty.shape == (0, 4)


def test_a_transform_keeps_its_allocations() -> None:
    def count(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(3).add_(x)

    with Guard():
        assert torch.vmap(count)(torch.tensor([1.0, 2.0])).tolist() == [[1] * 3, [2] * 3]


def test_between_the_rows() -> None:
    guard = Guard()
    x = guard.fence("x", (3, 4), (6, 1), torch.float32, torch.device("cpu")).tensor.fill_(1.0)
    guard.check()
    ctypes.memset(x.data_ptr() + 16, 0, 4)
    with pytest.raises(KernelFault, match="wrote between the rows of x"):
        guard.check()


def test_native_allocations_are_filled_too() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        with Guard(native=True):
            assert torch.ops.aten.empty.memory_format([7]).isnan().all()
    finally:
        torch._C._set_deterministic_algorithms(before)
