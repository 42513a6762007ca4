"""The building blocks of chunked recurrences, for interpreted_numerics.py: products, splits, prefix sums."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

CASES: dict[str, Callable[[], None]] = {}
SINGLE, TF32 = 2.0**-24, 2.0**-11


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(got: Tensor, wanted: Tensor, terms: Tensor) -> float:
    """The largest error, relative to the sum of the absolute terms of its element."""
    return float(((got.double() - wanted).abs() / terms).max())


@triton.jit
def _dot_kernel(a, b, c, d, N: tl.constexpr, PRECISION: tl.constexpr, FORM: tl.constexpr, TRANSPOSED: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    x, y, acc = tl.load(a + at), tl.load(b + at), tl.load(c + at)
    if TRANSPOSED:
        x = tl.trans(x)
    if FORM == "third":
        acc = tl.dot(x, y, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    elif FORM == "named":
        acc = tl.dot(x, y, acc=acc, input_precision=PRECISION)
    else:
        acc += tl.dot(x, y, input_precision=PRECISION)
    tl.store(d + at, acc)


def dot(a: Tensor, b: Tensor, c: Tensor, precision: str | None, form: str = "third", transposed: bool = False) -> float:
    """The error of a @ b + c."""
    d = torch.full_like(c, float("nan"))
    _dot_kernel[(1,)](a, b, c, d, N=len(a), PRECISION=precision, FORM=form, TRANSPOSED=transposed)
    left = (a.T if transposed else a).double()
    return error(d, left @ b.double() + c.double(), left.abs() @ b.double().abs() + c.double().abs())


@case
def products_of_halves_are_summed_in_float32() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        a, b, c = normal(32, 32).to(dtype), normal(32, 32, seed=1).to(dtype), normal(32, 32, seed=2)
        for form in ("third", "named", "added"):
            for transposed in (False, True):
                assert dot(a, b, c, None, form, transposed) <= 8 * SINGLE, (dtype, form, transposed)


@case
def products_of_float32_have_the_requested_precision() -> None:
    a, b, c = normal(32, 32), normal(32, 32, seed=1), normal(32, 32, seed=2)
    for form in ("third", "named", "added"):
        for precision in ("ieee", "tf32x3"):
            assert dot(a, b, c, precision, form) <= 8 * SINGLE, (precision, form)
        for short in ("tf32", None):  # None: a GPU's default
            assert SINGLE * 64 < dot(a, b, c, short, form) <= TF32, (short, form)


@case
def products_of_float64_are_exact() -> None:
    a, b, c = normal(16, 16).double(), normal(16, 16, seed=1).double(), normal(16, 16, seed=2).double()
    assert dot(a, b, c, "ieee") <= 2.0**-50


@triton.jit
def _split_kernel(x, y, exact, N: tl.constexpr):
    """x @ y for float32 by three products of bfloat16; `exact` gets what the two parts of x lose."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    a, b = tl.load(x + at), tl.load(y + at)
    a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
    a_low, b_low = (a - a_high).to(tl.bfloat16), (b - b_high.to(tl.float32)).to(tl.bfloat16)
    tl.store(exact + at, a - a_high.to(tl.float32) - a_low.to(tl.float32))
    acc = tl.dot(a_low, b_high)
    acc = tl.dot(a_high, b_low, acc)
    tl.store(y + at, tl.dot(a_high, b_high, acc))


@case
def float32_splits_into_two_bfloat16() -> None:
    x, y, left = normal(32, 32), normal(32, 32, seed=1), torch.empty(32, 32)
    wanted, terms = x.double() @ y.double(), x.double().abs() @ y.double().abs()
    _split_kernel[(1,)](x, y, left, N=32)
    high = x.bfloat16()
    low = (x - high.float()).bfloat16()
    assert torch.equal(left, x - high.float() - low.float())
    assert left.abs().max() <= 2.0**-16 * x.abs().max()
    assert error(y, wanted, terms) <= 2.0**-16


@triton.jit
def _prefix_kernel(x, forward, backward, total, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    value = tl.load(x + at)
    tl.store(forward + at, tl.cumsum(value, 0))
    tl.store(backward + at, tl.cumsum(value, 0, reverse=True))
    tl.store(total + i, tl.sum(value, 0))


@case
def prefix_sums_run_either_way() -> None:
    for dtype in (torch.float32, torch.float64):
        x, unit = normal(32, 32).to(dtype), torch.finfo(dtype).eps
        forward, backward, total = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x[0])
        _prefix_kernel[(1,)](x, forward, backward, total, N=32)
        wide, size = x.double(), x.double().abs().sum(0)
        assert error(forward, wide.cumsum(0), size) <= 4 * unit
        assert error(backward, wide.flip(0).cumsum(0).flip(0), size) <= 4 * unit
        assert error(total, wide.sum(0), size) <= 4 * unit


@triton.jit
def _decay_kernel(x, sums, decay, pairs, N: tl.constexpr):
    """Sums of bfloat16 in float32, exp2 of masked differences, and halves put together and taken apart."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    value = tl.load(x + at)
    tl.store(sums + i, tl.sum(value.to(tl.float32), 1))
    running = tl.cumsum(tl.load(x + i).to(tl.float32), 0)
    later = i[:, None] >= i[None, :]
    tl.store(decay + at, tl.exp2(tl.where(later, running[:, None] - running[None, :], float("-inf"))))
    first, second = tl.split(tl.join(value, -value))
    transposed = tl.trans(tl.trans(first, 1, 0))
    tl.store(pairs + at, tl.where(transposed + second == 0, transposed, float("nan")))


@case
def decays_sums_and_halves_are_torchs() -> None:
    x = normal(16, 16).bfloat16()
    sums, decay, pairs = torch.empty(16), torch.empty(16, 16), torch.empty_like(x)
    _decay_kernel[(1,)](x, sums, decay, pairs, N=16)
    running = x[0].double().cumsum(0)
    wanted = torch.exp2(running[:, None] - running[None, :]).tril()
    assert error(sums, x.double().sum(1), x.double().abs().sum(1)) <= 8 * SINGLE
    assert torch.equal(decay, decay.tril())
    assert error(decay.tril(), wanted, wanted + 1e-30) <= 32 * SINGLE * 16
    assert torch.equal(pairs, x)


@triton.jit
def _walk_kernel(x, offsets, sums, steps, S: tl.constexpr, CHUNK: tl.constexpr):
    """Sums of sequences by tl.range and their numbers of chunks by a while loop; bounds are read from memory."""
    i = tl.arange(0, CHUNK)
    for s in tl.range(S, num_stages=2):
        start = tl.load(offsets + s)
        end = tl.load(offsets + s + 1)
        total = tl.zeros((CHUNK,), tl.float32)
        for first in tl.range(start, end, CHUNK, num_stages=2):
            total += tl.load(x + first + i, mask=first + i < end, other=0.0)
        tl.store(sums + s, tl.sum(total, 0))
        count = 0
        at = start
        while at < end:
            at += CHUNK
            count += 1
        tl.store(steps + s, count)


@case
def loops_follow_bounds_read_from_memory() -> None:
    lengths = [0, 1, 4, 9, 0, 5]
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    x, sums, steps = normal(int(offsets[-1])), torch.empty(6), torch.empty(6, dtype=torch.int32)
    _walk_kernel[(1,)](x, offsets, sums, steps, S=6, CHUNK=4)
    torch.testing.assert_close(sums, torch.stack([part.sum() for part in x.split(lengths)]))
    assert steps.tolist() == [0, 1, 1, 3, 0, 2]
