"""Triton kernels whose programs differ in what they do, for interpreted_batch.py."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from tests.interpreter.triton_samples import HAS_BLOCK_POINTERS, TRITON, fresh

LAUNCHES: dict[str, Callable[[], list[Tensor]]] = {}
PROGRAMS = 7


def launch(function: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    LAUNCHES[function.__name__] = function
    return function


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


# ------------------------------------------------------------------ blocks


@triton.jit
def _masked_kernel(x, y, rows, columns, R: tl.constexpr, C: tl.constexpr):
    row = (tl.program_id(0) * R + tl.arange(0, R))[:, None]
    column = (tl.program_id(1) * C + tl.arange(0, C))[None, :]
    inside = (row < rows) & (column < columns)
    value = tl.load(x + row.to(tl.int64) * columns + column, mask=inside, other=0.5)
    undefined = tl.load(x + row * columns + column, mask=inside)
    tl.store(y + row * columns + column, tl.exp(value) * tl.where(inside, undefined, 1.0), mask=inside)


@launch
def masks() -> list[Tensor]:
    x, y = numbers(9, 21), fresh(9, 21)
    _masked_kernel[(3, 3)](x, y, 9, 21, R=4, C=8)
    return [y]


@triton.jit
def _python_calls_kernel(y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    total = tl.zeros([B], dtype=tl.int64)
    for k in range(n):
        total += max(0, i - k.to(tl.int64)) + min(i, k, 2)
    tl.store(y + tl.program_id(0) * B + i, total + (n + 1).to(tl.int64) + max(B, 3))


@launch
def python_calls() -> list[Tensor]:
    y, i = fresh(PROGRAMS, 8, dtype=torch.int64), torch.arange(8)
    _python_calls_kernel[(PROGRAMS,)](y, 4, B=8)
    expected = sum((i - k).clamp(min=0) + i.clamp(max=min(k, 2)) for k in range(4)) + 4 + 1 + 8
    assert torch.equal(y, expected.expand(PROGRAMS, 8))
    return [y]


@triton.jit
def _halfway_kernel(x, y):
    p = tl.program_id(0)
    between = (x.to(tl.pointer_type(tl.int8)) + 2).to(tl.pointer_type(tl.int32))  # the halves of two elements
    tl.store(y + p, tl.load(between + p))


@launch
def unaligned() -> list[Tensor]:
    x, y = torch.arange(PROGRAMS + 1, dtype=torch.int32) * 100_001, fresh(PROGRAMS, dtype=torch.int32)
    _halfway_kernel[(PROGRAMS,)](x, y)
    return [y]


@triton.jit
def _dot_kernel(a, b, y, N: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + tl.program_id(0) * N * K + i[:, None] * K + k[None, :])
    right = tl.load(b + i[:, None] * K + k[None, :])
    at = y + tl.program_id(0) * N * N + i[:, None] * N + i[None, :]
    total = tl.dot(left, tl.trans(right), input_precision="ieee")
    total = tl.dot(left, right.T, total, input_precision="tf32x3")
    tl.store(at, total + tl.sum(tl.trans(total)) + tl.sum(total.to(tl.float32), 0)[None, :])


def _products(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    def products() -> list[Tensor]:
        y = fresh(PROGRAMS, 16, 16)
        _dot_kernel[(PROGRAMS,)](numbers(PROGRAMS, 16, 32, dtype=dtype), numbers(16, 32, dtype=dtype), y, N=16, K=32)
        return [y]

    return products


for _dtype in (torch.float32, torch.bfloat16, torch.float16):
    LAUNCHES[f"products_of_{_dtype}"] = _products(_dtype)


@triton.jit
def _decay(a0, b0, a1, b1):
    return a0 * a1, b1 + a1 * b0


@triton.jit
def _reduction_kernel(x, y, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    block = tl.load(x + tl.program_id(0) * M * N + at)
    largest, where = tl.max(block, 1, return_indices=True)
    decayed, _ = tl.associative_scan((block, block), 0, _decay)
    _, reverse = tl.associative_scan((block, block), 1, _decay, reverse=True)
    result = tl.cumsum(block, 0) + tl.cumsum(block, 1, reverse=True) + decayed + reverse
    result += tl.sum(block, 0)[None, :] + tl.sum(block, 1, keep_dims=True) + largest[:, None] * where[:, None]
    result += tl.sum(block) + tl.max(block) + tl.min(tl.trans(block), 0)[:, None] + tl.argmax(block, 0)[None, :]
    tl.store(y + tl.program_id(0) * M * N + at, result.to(y.dtype.element_ty))


def _reductions(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    def reductions() -> list[Tensor]:
        x, y = numbers(PROGRAMS, 8, 32, dtype=dtype), fresh(PROGRAMS, 8, 32, dtype=dtype)
        x[1, 2, 3] = torch.nan
        _reduction_kernel[(PROGRAMS,)](x, y, M=8, N=32)
        return [y]

    return reductions


for _dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
    LAUNCHES[f"reductions_of_{_dtype}"] = _reductions(_dtype)


@triton.jit
def _narrow_kernel(x, y, z, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    block = tl.load(x + tl.program_id(0) * M * N + at)
    running = tl.associative_scan(block, 0, tl.standard._sum_combine)  # not widened, as tl.cumsum of triton 3.9
    running += tl.associative_scan(block, 1, tl.standard._prod_combine, reverse=True)
    largest, where = tl.core._reduce_with_indices(block, 1, tl.standard._argmax_combine_tie_break_left)
    tl.store(y + tl.program_id(0) * M * N + at, -running + largest[:, None])
    tl.store(z + tl.program_id(0) * M + i, where)


@launch
def scans_of_bfloat16_that_are_not_widened() -> list[Tensor]:
    x, y = numbers(PROGRAMS, 8, 32, dtype=torch.bfloat16), fresh(PROGRAMS, 8, 32, dtype=torch.bfloat16)
    where = fresh(PROGRAMS, 8, dtype=torch.int32)
    _narrow_kernel[(PROGRAMS,)](x, y, where, M=8, N=32)
    assert torch.equal(where, x.argmax(2).int())
    return [y, where]


@triton.jit
def _shapes_kernel(x, y, N: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    row = tl.load(x + pid * N + i)
    pairs = tl.join(row, row * pid)  # [N, 2]
    left, right = tl.split(pairs + 1)
    turned = tl.permute(tl.reshape(tl.broadcast_to(row[None, :], (4, N)), (2, 2, N)), (2, 0, 1))
    turned = tl.sum(tl.sum(turned, 2), 1)
    taken = tl.gather(row, (i + pid) % N, 0)
    doubled = tl.sum(tl.reshape(tl.cat(row, left, can_reorder=True), (2, N)), 0)
    full = tl.full((N,), 0.1, tl.float32) * tl.num_programs(0) + tl.zeros_like(row)
    tl.store(y + pid * N + i, left * right + turned + taken + doubled + full + tl.rand(pid, i))


@launch
def shapes() -> list[Tensor]:
    y = fresh(PROGRAMS, 16)
    _shapes_kernel[(PROGRAMS,)](numbers(PROGRAMS, 16), y, N=16)
    return [y]


@triton.jit
def _halves_kernel(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + at)
    half = value.to(tl.bfloat16) * 3 - value.to(tl.bfloat16) / 7
    tl.store(y + at, half.to(tl.float32) + (value.to(tl.float16) + 0.1).to(tl.float32) + tl.maximum(value, 0.0))


@launch
def halves_and_nan() -> list[Tensor]:
    x, y = numbers(PROGRAMS, 32) * 1000, fresh(PROGRAMS, 32)
    x[2, 5:9] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    _halves_kernel[(PROGRAMS,)](x, y, N=32)
    return [y]


@triton.jit
def _libdevice_kernel(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + at)
    scalar = libdevice.log1p(tl.program_id(0).to(tl.float32))
    tl.store(y + at, libdevice.tanh(value) + libdevice.pow(tl.abs(value), scalar) + libdevice.atan2(value, scalar))


@launch
def functions_of_libdevice() -> list[Tensor]:
    y = fresh(PROGRAMS, 32)
    _libdevice_kernel[(PROGRAMS,)](numbers(PROGRAMS, 32), y, N=32)
    return [y]


@triton.jit
def _block_pointer_kernel(x, y, rows, columns, N: tl.constexpr, PADDING: tl.constexpr):
    pid = tl.program_id(0)
    block = tl.make_block_ptr(x, (rows, columns), (columns, 1), (pid * N, 0), (N, N), (1, 0))
    total = tl.zeros((N, N), tl.float32)
    for _ in range(0, tl.cdiv(columns, N)):
        total += tl.load(block, boundary_check=(0, 1), padding_option=PADDING)
        block = tl.advance(block, (0, N))
    out = tl.make_block_ptr(y, (rows, N), (N, 1), (pid * N, 0), (N, N), (1, 0))
    tl.store(out, total, boundary_check=(0,))


def block_pointers() -> list[Tensor]:
    x, named, none = numbers(26, 21), fresh(26, 8), fresh(26, 8)
    for y, padding in ((named, "zero"), (none, "")):
        _block_pointer_kernel[(4,)](x, y, 26, 21, N=8, PADDING=padding)
    parts = torch.nn.functional.pad(x, (0, 3)).unflatten(1, (3, 8))
    assert torch.equal(named, none)
    assert torch.equal(none, (parts[:, 0] + parts[:, 1]) + parts[:, 2])
    return [named, none]


if HAS_BLOCK_POINTERS:
    launch(block_pointers)


@triton.jit
def _keyword_kernel(x, y, *, n, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, -value, mask=at < n)


def parameters_by_keyword_alone() -> list[Tensor]:
    x, y = numbers(100), fresh(100)
    _keyword_kernel[(PROGRAMS,)](x, y, n=100, N=16)
    assert torch.equal(y, -x)
    return [y]


if TRITON >= (3, 9):
    launch(parameters_by_keyword_alone)


@triton.jit
def _descriptor_kernel(x, y, rows, columns, N: tl.constexpr):
    block = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [N, N])
    out = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [N, N])
    at = tl.program_id(0) * N
    out.store([at, 8], block.load([at, 0]) * 2)


@launch
def tensor_descriptors() -> list[Tensor]:
    y = torch.zeros(26, 16)
    _descriptor_kernel[(4,)](numbers(26, 16), y, 26, 16, N=8)
    return [y]


# ------------------------------------------------------------------ control flow


@triton.jit
def _branch_kernel(x, y, n, N: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, N)
    value = tl.load(x + pid * N + i)
    scale = 1.0
    if pid % 3 == 0:
        value = value * 2
        if pid > 3:
            scale = tl.sum(value)
        late = scale + pid
    elif pid == n - 1:
        value = tl.load(x + i) - value
        late = 4.0
    else:
        late = tl.load(x + (pid + 1) * N)  # out of bounds in the last program
    tl.store(y + pid * N + i, value * scale + late)


@launch
def branches() -> list[Tensor]:
    y = fresh(PROGRAMS + 1, 16)
    _branch_kernel[(PROGRAMS + 1,)](numbers(PROGRAMS + 1, 16), y, PROGRAMS + 1, N=16)
    return [y]


@triton.jit
def _logic_kernel(x, y, n):
    pid = tl.program_id(0)
    first = pid > 0 and tl.load(x + pid - 1) > 0
    last = pid == n - 1 or tl.load(x + pid + 1) > 0
    value = tl.load(x + pid) if first else 0.0
    value = value if not last else value + 1
    if not (first or last) and pid != 2:
        value = -1.0
    tl.store(y + pid, value)


@launch
def logic() -> list[Tensor]:
    x, y = numbers(PROGRAMS * 3), fresh(PROGRAMS * 3)
    _logic_kernel[(PROGRAMS * 3,)](x, y, PROGRAMS * 3)
    return [y]


@triton.jit
def _loop_kernel(starts, x, y, N: tl.constexpr):
    pid = tl.program_id(0)
    start, end = tl.load(starts + pid), tl.load(starts + pid + 1)
    total = tl.zeros((N,), tl.float32)
    seen = 0
    for first in range(start, end, N):
        at = first + tl.arange(0, N)
        block = tl.load(x + at, mask=at < end, other=0.0)
        total += block * (first - start + 1)
        if first == start:
            total = total * 2
        for k in range(0, first % 3):
            seen += k + 1
    tl.store(y + pid * N + tl.arange(0, N), total + seen)


@launch
def loops() -> list[Tensor]:
    starts = torch.tensor([0, 5, 5, 40, 41, 77, 90], dtype=torch.int32)
    y = fresh(6, 8)
    _loop_kernel[(6,)](starts, numbers(90), y, N=8)
    return [y]


@triton.jit
def _while_kernel(x, y, n):
    pid = tl.program_id(0)
    low, high = 0, n
    wanted = pid * 2.5
    while low < high:  # the first element that is not below
        middle = (low + high) // 2
        if tl.load(x + middle) < wanted:
            low = middle + 1
        else:
            high = middle
    count = pid
    while count > 0 and tl.load(x + count) > 3:
        count -= 2
    tl.store(y + pid, low * 100 + count)


@launch
def data_dependent_loops() -> list[Tensor]:
    y = fresh(PROGRAMS, dtype=torch.int32)
    _while_kernel[(PROGRAMS,)](torch.arange(20.0), y, 20)
    return [y]


@triton.jit
def _item(x, pid, n):
    """A device function that some programs leave early, after a store."""
    value = tl.load(x + pid)
    if value < 0:
        tl.store(x + pid, -value)
        return
    for k in range(0, pid):
        if k == 3:
            return
        tl.store(x + n + pid, value + k)


@triton.jit
def _return_kernel(x, y, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    _item(x, pid, n)
    if tl.load(x + pid) > 1:
        tl.store(y + pid, 1.0)
        return
    tl.store(y + pid, pid + 10.0)


@launch
def early_returns() -> list[Tensor]:
    x, y = torch.zeros(2 * PROGRAMS), torch.zeros(PROGRAMS)
    x[:PROGRAMS] = numbers(PROGRAMS)
    _return_kernel[(PROGRAMS + 2,)](x, y, PROGRAMS)
    return [x, y]


@triton.jit
def _worklist_kernel(x, y, n, N: tl.constexpr, SQUARE: tl.constexpr):
    step = tl.num_programs(0)
    for item in tl.range(tl.program_id(0), n, step):
        at = item * N + tl.arange(0, N)
        value = tl.load(x + at)
        value = value * value if SQUARE else value
        tl.store(y + at, value + item // 2 + item % 3)


@launch
def worklists() -> list[Tensor]:
    y = fresh(20, 8)
    _worklist_kernel[(PROGRAMS,)](numbers(20, 8), y, 20, N=8, SQUARE=True)
    return [y]


@triton.jit
def _replaced_kernel(x, y, n):
    pid = tl.program_id(0)
    total = 0.0
    for k in tl.range(0, pid):
        total += tl.load(x + k)
    for at in tl.range(0, n - pid):
        k = n - 1 - at
        if k % 2 == 0:
            total += tl.load(x + k) * k
    tl.store(y + pid, total)


@launch
def a_counter_that_is_replaced() -> list[Tensor]:
    y = fresh(PROGRAMS)
    _replaced_kernel[(PROGRAMS,)](numbers(PROGRAMS), y, PROGRAMS)
    return [y]


# ------------------------------------------------------------------ a convolution, forward and backward


@triton.jit
def _conv_kernel(x, w, ids, y, T, D, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    me = tl.load(ids + t, mask=t < T, other=-1)
    total = tl.zeros((BT, BD), tl.float32)
    for i in range(W):
        source = tl.maximum(t - (W - 1 - i), 0)
        same = (t < T) & (t >= W - 1 - i) & (tl.load(ids + source, mask=t < T, other=-2) == me)
        at = source[:, None].to(tl.int64) * D + d[None, :]
        value = tl.load(x + at, mask=same[:, None] & (d < D)[None, :], other=0.0)
        total += value.to(tl.float32) * tl.load(w + d * W + i, mask=d < D, other=0.0).to(tl.float32)[None, :]
    total = total * (1 / (1 + tl.exp(-total)))
    inside = (t < T)[:, None] & (d < D)[None, :]
    tl.store(y + t[:, None].to(tl.int64) * D + d[None, :], total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _conv_backward_kernel(x, dy, dw, T, D, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    """A program walks over all rows, and adds up in memory."""
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    for first in range(0, T, BT):
        t = first + tl.arange(0, BT)
        for i in range(W):
            later = t + (W - 1 - i)
            inside = (later < T)[:, None] & (d < D)[None, :]
            g = tl.load(dy + later[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
            value = tl.load(x + t[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
            old = tl.load(dw + d * W + i, mask=d < D, other=0.0)
            tl.store(dw + d * W + i, old + tl.sum(g * value, 0), mask=d < D)


def _convolution(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    def convolution() -> list[Tensor]:
        x, w, y = numbers(37, 50, dtype=dtype), numbers(50, 3, dtype=dtype), fresh(37, 50, dtype=dtype)
        ids = torch.repeat_interleave(torch.arange(4), torch.tensor([20, 0, 1, 16])).int()
        _conv_kernel[(3, 4)](x, w, ids, y, 37, 50, W=3, BT=16, BD=16)
        dw = torch.zeros(50, 3)
        _conv_backward_kernel[(4,)](x, y, dw, 37, 50, W=3, BT=16, BD=16)
        return [y, dw]

    return convolution


for _dtype in (torch.float32, torch.bfloat16):
    LAUNCHES[f"convolution_of_{_dtype}"] = _convolution(_dtype)
