"""The self-test of the repaired interpreter: small kernels against torch. Import it under TRITON_INTERPRET=1."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from packproof.base.errors import KernelFault
from packproof.interpreter.sanitizer import Sanitizer


@triton.jit
def _arithmetic_kernel(a, b, sums, products, quotients, fused, less, largest, least, negated, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    y = tl.load(b + i)
    tl.store(sums + i, x + 0.3)
    tl.store(products + i, x * y - x)
    tl.store(quotients + i, (x / y).to(products.dtype.element_ty))
    tl.store(fused + i, tl.fma(x, y, x))
    tl.store(less + i, (x < y).to(tl.float32))
    tl.store(largest + i, tl.maximum(x, y).to(products.dtype.element_ty))
    tl.store(least + i, tl.minimum(x, y).to(products.dtype.element_ty))
    tl.store(negated + i, -tl.clamp(y, -0.5, 0.5).to(products.dtype.element_ty))


@triton.jit
def _cast_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


@triton.jit
def _rounding_kernel(x, nearest, toward_zero, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(nearest + i, value.to(tl.bfloat16, fp_downcast_rounding="rtne"))
    tl.store(toward_zero + i, value.to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def _sum_kernel(x, total, largest, argmax, cumsum, cumprod, M: tl.constexpr, N: tl.constexpr):
    row = tl.arange(0, M)
    column = tl.arange(0, N)
    block = tl.load(x + row[:, None] * N + column[None, :])  # [M, N]
    tl.store(total + row, tl.sum(block, 1))
    tl.store(largest + row, tl.max(block, 1))
    tl.store(argmax + row, tl.argmax(block, 1))
    tl.store(cumsum + row[:, None] * N + column[None, :], tl.cumsum(block, 0))
    tl.store(cumprod + row[:, None] * N + column[None, :], tl.cumprod(block, 0))


@triton.jit
def _dot_kernel(a, b, c, N: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision=PRECISION))


@triton.jit
def _reset_combine(a0, b0, f0, a1, b1, f1):
    return tl.where(f1 != 0, a1, a0 * a1), tl.where(f1 != 0, b1, a1 * b0 + b1), f0 | f1


@triton.jit
def _larger_combine(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def _scan_kernel(a, b, flag, h, backwards, peak, T: tl.constexpr, D: tl.constexpr):
    at = tl.arange(0, T)[:, None] * D + tl.arange(0, D)[None, :]  # [T, D]
    operands = (tl.load(a + at), tl.load(b + at), tl.load(flag + at))
    _, forward, _ = tl.associative_scan(operands, 0, _reset_combine)
    _, reverse, _ = tl.associative_scan(operands, 0, _reset_combine, reverse=True)
    tl.store(h + at, forward)
    tl.store(backwards + at, reverse)
    tl.store(peak + tl.arange(0, D), tl.reduce(tl.load(b + at), 0, _larger_combine))


@triton.autotune([triton.Config({"N": 16}), triton.Config({"N": 8})], key=["n"])
@triton.jit
def _tuned_kernel(x, y, n, N: tl.constexpr):
    total = 0.0
    for i in range(0, tl.cdiv(n, N)):
        total += tl.sum(tl.load(x + i * N + tl.arange(0, N), mask=i * N + tl.arange(0, N) < n, other=0.0))
    tl.store(y, total)


@triton.jit
def _libdevice_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, libdevice.log1p(libdevice.exp(tl.load(x + i))))


@triton.jit
def _masked_load_kernel(x, y, present):
    tl.store(y, tl.load(x, mask=present > 0, other=0))


@triton.jit
def _past_the_end_kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i + 1))


@triton.jit
def _assert_kernel(x):
    tl.device_assert(tl.load(x) > 0, "x is positive")


def run() -> list[str]:
    """Run every check. Returns one line for each failure."""
    failures: list[str] = []
    for name, check in _CHECKS.items():
        try:
            differences = check()
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
        else:
            failures += [f"{name}: {difference}" for difference in differences]
    return failures


def _differences(pairs: dict[str, tuple[Tensor, Tensor, float]]) -> list[str]:
    """One line for each result with an error above its bound, relative to the largest expected value.

    pairs: result, expected result and bound by name.
    """
    lines = []
    for name, (actual, expected, bound) in pairs.items():
        error = (actual.double() - expected.double()).abs().max() / expected.double().abs().max()
        if not error <= bound:  # a NaN does not fit
            lines.append(f"{name} differs from torch by {error:.1e} of its largest value, allowed {bound:.1e}")
    return lines


def _arithmetic(dtype: torch.dtype) -> list[str]:
    a, b = _normal(64).to(dtype), _normal(64, seed=1).to(dtype)
    b[0] = torch.nan
    sums, products, quotients, fused, largest, least, negated = (torch.empty_like(a) for _ in range(7))
    less = torch.empty(64)
    _arithmetic_kernel[(1,)](a, b, sums, products, quotients, fused, less, largest, least, negated, N=64)
    finite = slice(1, None)
    half_ulp = torch.finfo(dtype).eps / 2
    return _differences(
        {
            "x + 0.3": (sums, a + torch.tensor(0.3, dtype=dtype), 0),
            "x * y - x": (products[finite], (a * b - a)[finite], 0),
            "x / y": (quotients[finite], (a / b)[finite], half_ulp),
            "tl.fma": (fused[finite], (a.double() * b.double() + a.double())[finite], half_ulp),
            "x < y": (less, (a < b).float(), 0),
            "tl.maximum with a NaN": (largest, torch.fmax(a, b), 0),
            "tl.minimum with a NaN": (least, torch.fmin(a, b), 0),
            "-tl.clamp with a NaN": (negated, -b.nan_to_num(-0.5).clamp(-0.5, 0.5), 0),
        }
    )


def _casts() -> list[str]:
    pairs = {}
    values = torch.cat(
        [_normal(1020) * 10.0 ** torch.linspace(-30, 38, 1020), _tensor([0.0, 1e-42, 3.4e38, torch.inf])]
    )
    for source in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for target in (torch.float32, torch.bfloat16, torch.float16):
            x = values.to(source)
            y = torch.empty(1024, dtype=target)
            _cast_kernel[(1,)](x, y, N=1024)
            expected = x.float().to(target) if target == torch.bfloat16 else x.to(target)
            pairs[f"{source} to {target}"] = _exact_pair(y, expected)
    x, nearest, truncated = (
        _normal(1024),
        torch.empty(1024, dtype=torch.bfloat16),
        torch.empty(1024, dtype=torch.bfloat16),
    )
    _rounding_kernel[(1,)](x, nearest, truncated, N=1024)
    pairs["float32 to bfloat16, rtne"] = _exact_pair(nearest, x.bfloat16())
    pairs["float32 to bfloat16, rtz"] = _exact_pair(
        truncated.float(), (x.view(torch.int32) & -0x10000).view(torch.float32)
    )
    return _differences(pairs)


def _exact_pair(actual: Tensor, expected: Tensor) -> tuple[Tensor, Tensor, float]:
    """A pair for `_differences` whose error is the number of unequal elements."""
    return (actual != expected).sum()[None] + 1.0, torch.ones(1), 0.0


def _sums(dtype: torch.dtype) -> list[str]:
    x = _normal(64).reshape(8, 8).to(dtype)
    total, largest, argmax = torch.empty(8, dtype=dtype), torch.empty(8, dtype=dtype), torch.empty(8, dtype=torch.int32)
    cumsum, cumprod = torch.empty_like(x), torch.empty_like(x)
    _sum_kernel[(1,)](x, total, largest, argmax, cumsum, cumprod, M=8, N=8)
    ulp = torch.finfo(dtype).eps
    return _differences(
        {
            "tl.sum": (total, x.double().sum(1), 2 * ulp),
            "tl.max": (largest, x.amax(1), 0),
            "tl.argmax": (argmax, x.argmax(1), 0),
            "tl.cumsum": (cumsum, x.double().cumsum(0), 4 * ulp),
            "tl.cumprod": (cumprod, x.double().cumprod(0), 4 * ulp),
        }
    )


def _dots() -> list[str]:
    pairs = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        a, b, c = (
            _normal(256).reshape(16, 16).to(dtype),
            _normal(256, seed=1).reshape(16, 16).to(dtype),
            torch.empty(16, 16),
        )
        _dot_kernel[(1,)](a, b, c, N=16, PRECISION="ieee")
        pairs[f"tl.dot of {dtype}"] = (c, a.double() @ b.double(), 1e-6)
    differences = _differences(pairs)
    rounded, split = torch.empty(16, 16), torch.empty(16, 16)
    _dot_kernel[(1,)](a, b, rounded, N=16, PRECISION="tf32")
    _dot_kernel[(1,)](a, b, split, N=16, PRECISION="tf32x3")
    if torch.equal(rounded, c):
        differences.append("tl.dot ignores input_precision='tf32'")
    return differences + _differences({"tl.dot in tf32": (rounded, c, 2e-3), "tl.dot in tf32x3": (split, c, 1e-6)})


def _scans() -> list[str]:
    a, b = torch.sigmoid(_normal(32)).reshape(16, 2), _normal(32, seed=1).reshape(16, 2)
    flag = torch.zeros(16, 2, dtype=torch.int32)
    flag[5], flag[6] = 1, 1
    h, backwards, peak = torch.empty_like(a), torch.empty_like(a), torch.empty(2)
    _scan_kernel[(1,)](a, b, flag, h, backwards, peak, T=16, D=2)
    return _differences(
        {
            "tl.associative_scan": (h, _recurrence(a, b, flag), 1e-6),
            "tl.associative_scan in reverse": (
                backwards,
                _recurrence(a.flip(0), b.flip(0), flag.flip(0)).flip(0),
                1e-6,
            ),
            "tl.reduce": (peak, b.amax(0), 0),
        }
    )


def _recurrence(a: Tensor, b: Tensor, flag: Tensor) -> Tensor:
    states = [b[0]]
    for t in range(1, len(a)):
        states.append(torch.where(flag[t] != 0, b[t], a[t] * states[-1] + b[t]))
    return torch.stack(states)


def _autotuning() -> list[str]:
    x, y = _normal(20), torch.empty(1)
    _tuned_kernel.cache.clear()
    _tuned_kernel[(1,)](x, y, 20)
    return _differences({"an autotuned loop over a runtime value": (y, x.double().sum()[None], 1e-6)})


def _libdevice() -> list[str]:
    x, y = _normal(16), torch.empty(16)
    _libdevice_kernel[(1,)](x, y, N=16)
    return _differences({"libdevice": (y, x.exp().log1p(), 1e-6)})


def _sanitizer() -> list[str]:
    masked = torch.empty(1)
    with Sanitizer():
        _masked_load_kernel[(1,)](_normal(1), masked, 0)
    try:
        with Sanitizer():
            _past_the_end_kernel[(1,)](_normal(16), torch.empty(16), N=16)
    except KernelFault:
        return _differences({"a masked scalar load with other=0": (masked + 1, torch.ones(1), 0)})
    return ["a read past the end was not detected"]


def _device_assert() -> list[str]:
    try:
        _assert_kernel[(1,)](_tensor([-1.0]))
    except AssertionError:
        return []
    return ["tl.device_assert did not fire"]


def _normal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


_CHECKS: dict[str, Callable[[], list[str]]] = {
    "bfloat16 arithmetic": lambda: _arithmetic(torch.bfloat16),
    "float16 arithmetic": lambda: _arithmetic(torch.float16),
    "float32 arithmetic": lambda: _arithmetic(torch.float32),
    "casts": _casts,
    "bfloat16 reductions": lambda: _sums(torch.bfloat16),
    "float32 reductions": lambda: _sums(torch.float32),
    "dot": _dots,
    "scan": _scans,
    "autotune": _autotuning,
    "libdevice": _libdevice,
    "sanitizer": _sanitizer,
    "device_assert": _device_assert,
}
