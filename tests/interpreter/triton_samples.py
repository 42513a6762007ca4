"""Triton kernels with correct and incorrect memory accesses, for interpreted_sanitizer.py."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.interpreter.memory_guard import POISON, fill_poison
from packproof.interpreter.sanitizer import Order, Sanitizer

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def fresh(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A buffer as the guard hands it to a kernel: poisoned."""
    buffer = torch.zeros(shape, dtype=dtype)
    fill_poison(buffer)
    return buffer


def numbers(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1


# ------------------------------------------------------------------ bounds


@triton.jit
def _shift_kernel(x, y, n, shift, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i + shift, mask=i < n, other=0.0)
    tl.store(y + i, value, mask=i < n)


@triton.jit
def _unmasked_store_kernel(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0))


@triton.jit
def _rows_kernel(x, y, n, d, stride, B: tl.constexpr, D: tl.constexpr):
    row = tl.arange(0, B)[:, None]
    column = tl.arange(0, D)[None, :]
    inside = (row < n) & (column < d)
    tl.store(y + row * d + column, tl.load(x + row * stride + column, mask=inside, other=0.0), mask=inside)


@case
def copy_with_masks() -> None:
    x, y = numbers(37), fresh(37)
    with Sanitizer(read_only=[x]) as sanitizer:
        _shift_kernel[(3,)](x, y, 37, 0, B=16)
        _shift_kernel[(3,)](x, y, 37, 0, B=16)
    assert torch.equal(x, y)
    assert sanitizer.launches == 2


@case
def read_past_the_end() -> None:
    with Sanitizer():
        _shift_kernel[(3,)](numbers(37), fresh(37), 37, 2, B=16)


@case
def read_before_the_start() -> None:
    with Sanitizer():
        _shift_kernel[(3,)](numbers(37), fresh(37), 37, -3, B=16)


@case
def write_past_the_end() -> None:
    with Sanitizer():
        _unmasked_store_kernel[(2, 1)](numbers(18), fresh(18), 18, B=16)


@case
def read_a_window() -> None:
    x, y = numbers(6, 10)[:, 2:7], fresh(6, 5)
    with Sanitizer(read_only=[x]):
        _rows_kernel[(1,)](x, y, 6, 5, x.stride(0), B=8, D=8)
    assert torch.equal(x, y)


@case
def read_beside_a_window() -> None:
    x = numbers(6, 10)[:, 2:7]
    with Sanitizer():
        _rows_kernel[(1,)](x, fresh(6, 7), 6, 7, x.stride(0), B=8, D=8)


@case
def read_an_expanded_row() -> None:
    x, y = numbers(1, 5).expand(6, 5), fresh(6, 5)
    with Sanitizer(read_only=[x]):
        _rows_kernel[(1,)](x, y, 6, 5, x.stride(0), B=8, D=8)
    assert torch.equal(x, y)


@case
def tensors_without_elements() -> None:
    with Sanitizer():
        _shift_kernel[(1,)](numbers(0), fresh(0), 0, 0, B=16)


@case
def access_without_elements() -> None:
    with Sanitizer():
        _shift_kernel[(1,)](numbers(0), fresh(0), 1, 0, B=16)


@case
def grid_too_wide() -> None:
    with Sanitizer():
        _shift_kernel[(1, 65_536)](numbers(8), fresh(8), 8, 0, B=8)


@triton.jit
def _block_pointer_kernel(x, y, n, B: tl.constexpr):
    block = tl.make_block_ptr(x, (n,), (1,), (0,), (B,), (0,))
    tl.store(y + tl.arange(0, B), tl.load(block, boundary_check=(0,), padding_option="zero"))


TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
HAS_BLOCK_POINTERS = TRITON < (3, 9)


def block_pointer_with_padding() -> None:
    y = fresh(16)
    with Sanitizer():
        _block_pointer_kernel[(1,)](numbers(10), y, 10, B=16)
    assert torch.equal(y, torch.cat([numbers(10), torch.zeros(6)]))


if HAS_BLOCK_POINTERS:
    case(block_pointer_with_padding)


# ------------------------------------------------------------------ unwritten memory


@triton.jit
def _copy_kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i))


@triton.jit
def _add_in_place_kernel(total, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(total + i, tl.load(total + i) + 1)


def _read_unwritten(dtype: torch.dtype) -> Callable[[], None]:
    def read() -> None:
        scratch = fresh(8, dtype=dtype)
        scratch[:5] = 1
        with Sanitizer():
            _copy_kernel[(1,)](scratch, fresh(8, dtype=dtype), B=8)

    return read


for _dtype in POISON:
    CASES[f"read_unwritten_{str(_dtype).removeprefix('torch.')}"] = _read_unwritten(_dtype)


@case
def accumulate_in_unwritten() -> None:
    with Sanitizer():
        _add_in_place_kernel[(1,)](fresh(8), B=8)


@case
def scratch_between_launches() -> None:
    x, scratch, y = numbers(8), fresh(8), fresh(8)
    with Sanitizer(read_only=[x]):
        _copy_kernel[(1,)](x, scratch, B=8)
        _copy_kernel[(1,)](scratch, y, B=8)
        _add_in_place_kernel[(1,)](y, B=8)
    assert torch.equal(y, x + 1)


@triton.jit
def _no_other_kernel(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n))


def _no_other(dtype: torch.dtype) -> Tensor:
    y = fresh(8, dtype=dtype)
    with Sanitizer():
        _no_other_kernel[(1,)](torch.ones(8, dtype=dtype), y, 5, B=8)
    assert (y[:5] == 1).all()
    return y[5:]


@case
def masked_lanes_without_other() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert _no_other(dtype).isnan().all(), dtype
    for dtype in (torch.int64, torch.int32, torch.int8):
        assert (_no_other(dtype) > 40).all(), dtype


@triton.jit
def _optional_scalar_kernel(x, y, given):
    tl.store(y, tl.load(x, mask=given > 0, other=0.0))


@case
def masked_scalar_with_other() -> None:
    y = fresh(1)
    with Sanitizer():
        _optional_scalar_kernel[(1,)](numbers(1), y, 0)
    assert y.item() == 0


# ------------------------------------------------------------------ writes


@case
def write_to_an_input() -> None:
    x = numbers(8)
    with Sanitizer(read_only=[x]):
        _add_in_place_kernel[(1,)](x, B=8)


@case
def write_to_a_part_of_an_input() -> None:
    x = numbers(4, 4)
    with Sanitizer(read_only=[x[:, 1]]):
        _add_in_place_kernel[(1,)](x, B=16)


@case
def write_between_the_columns_of_an_input() -> None:
    x = numbers(8, 2)
    with Sanitizer(read_only=[x[:, 1]]):
        _column_kernel[(1,)](x[:, 0], B=8)


@triton.jit
def _column_kernel(x, B: tl.constexpr):
    tl.store(x + 2 * tl.arange(0, B), 0.0)


@triton.jit
def _half_kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i // 2, tl.load(x + i))


@case
def two_lanes_one_element() -> None:
    with Sanitizer():
        _half_kernel[(1,)](numbers(8), fresh(4), B=8)


@case
def two_lanes_one_element_same_value() -> None:
    y = fresh(4)
    with Sanitizer():
        _half_kernel[(1,)](torch.ones(8), y, B=8)
    assert (y == 1).all()


# ------------------------------------------------------------------ program order, launches, faults on their way out


@triton.jit
def _order_kernel(ticket, seen):
    p = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    tl.store(seen + tl.atomic_add(ticket, 1), p)


def _programs(order: Order, seed: int = 0) -> list[int]:
    seen = fresh(12, dtype=torch.int32)
    with Sanitizer(order=order, seed=seed):
        _order_kernel[(2, 3, 2)](torch.zeros(1, dtype=torch.int32), seen)
    return seen.tolist()


@case
def program_order() -> None:
    forward = list(range(12))
    assert _programs("forward") == forward
    assert _programs("reverse") == forward[::-1]
    shuffled = _programs("shuffle")
    assert sorted(shuffled) == forward
    assert shuffled == _programs("shuffle") != _programs("shuffle", seed=1)


@triton.jit
def _beyond(x, i):
    return tl.load(x + i + 1)


@triton.jit
def _device_function_kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, _beyond(x, i))


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = fresh(8)
        _copy_kernel[(1,)](x, y, B=8)
        return y

    @staticmethod
    def backward(ctx, gradient):
        dx = fresh(8)
        _device_function_kernel[(1,)](gradient, dx, B=8)
        return dx


@case
def fault_in_a_device_function() -> None:
    with Sanitizer():
        _device_function_kernel[(1,)](numbers(8), fresh(8), B=8)


@case
def fault_in_backward() -> None:
    x = numbers(8).requires_grad_()
    with Sanitizer(read_only=[x]):
        _Double.apply(x).backward(torch.ones(8))


@case
def swallowed_fault() -> None:
    with Sanitizer():
        try:
            _device_function_kernel[(1,)](numbers(8), fresh(8), B=8)
        except Exception:
            print("swallowed", file=sys.stderr)


@case
def nothing_watches_afterwards() -> None:
    with Sanitizer() as sanitizer:
        pass
    storage = numbers(9)
    _device_function_kernel[(1,)](storage[:8], fresh(8), B=8)
    assert sanitizer.launches == 0
