"""The self-test of batches: small kernels have the same bits as one program after another. Needs TRITON_INTERPRET=1."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from packproof.base.errors import PackproofError
from packproof.interpreter.batch import world
from packproof.interpreter.batch.launch import BatchingSanitizer
from packproof.interpreter.sanitizer import Sanitizer

_PROGRAMS = 5


@triton.jit
def _decay(a0, b0, a1, b1):
    return a0 * a1, b1 + a1 * b0


@triton.jit
def _block_kernel(x, y, n, M: tl.constexpr, N: tl.constexpr):
    """Loads with and without a value for masked lanes, products, sums, scans, transposes, roundings, shapes."""
    pid = tl.program_id(0)
    i, j = tl.arange(0, M), tl.arange(0, N)
    shared = tl.load(x + j, mask=j < n - pid, other=0.25).to(tl.float32)  # one row, with a mask of each program
    x += pid * M * N
    y += pid * M * N
    at = i[:, None] * N + j[None, :]  # [M, N]
    inside = (j < n - pid)[None, :]
    block = tl.load(x + at, mask=inside, other=0.5) + tl.where(inside, tl.load(x + at, mask=inside), 1.0)
    block = block.to(tl.float32)
    square = tl.dot(block, tl.trans(block), input_precision="ieee") + tl.dot(block, block.T, input_precision="tf32")
    half = tl.dot(block.to(tl.bfloat16), tl.trans(block.to(tl.bfloat16))) * 0.1
    total = block + (block.to(tl.bfloat16) * 3).to(tl.float32) + (block.to(tl.float16) / 7).to(tl.float32)
    total += tl.sum(square + half, 1)[:, None] + tl.sum(block, 0)[None, :] + tl.sum(tl.trans(block)) + tl.max(square)
    largest, index = tl.max(block, 1, return_indices=True)
    total += largest[:, None] * index[:, None] + tl.cumsum(block, 0) + tl.cumsum(block, 1, reverse=True)
    decayed, _ = tl.associative_scan((block, total), 0, _decay)
    total += decayed + tl.reduce((block, block), 1, _decay, keep_dims=True)[1] + tl.full((M, N), 0.1, tl.float32)
    total += libdevice.tanh(block) + tl.exp(tl.reshape(tl.broadcast_to(j[None, :], (M, N)), (N, M)).T * -0.1)
    lhs, rhs = tl.split(tl.join(total, tl.full((M, N), 0.3, tl.float32)))
    row = tl.gather(tl.sum(lhs * rhs, 0), (j + pid) % N, 0)
    short = total.to(tl.bfloat16)  # which tl.cumsum does not widen from triton 3.9 on
    total += tl.cumsum(-short, 0).to(tl.float32) + tl.argmax(short, 1)[:, None]
    row = tl.minimum(row * pid, row + shared)
    tl.store(y + at, tl.where(pid == 1, total, total + row[None, :]).to(y.dtype.element_ty))


@triton.jit
def _halve(x, at):
    value = tl.load(x + at)
    if value > 0:
        tl.store(x + at, value / 2)
        return
    tl.store(x + at, value - at)


@triton.jit
def _flow_kernel(x, w, y, steps, n):
    """Divergent conditions, loops and early returns; a store with a conversion."""
    pid = tl.program_id(0)
    if pid == n:
        return
    _halve(x, pid)
    total = 0.0
    for k in range(pid, 3 * pid, 2):
        total += k + 1
        if k % 3 == 0:
            total *= 1.5
        elif k > 4 and tl.load(w + pid - 1) > 0:
            total -= 1
    remaining = pid
    while remaining > 0 or total < 1:
        remaining -= 2
        total += 0.25
    initial = tl.load(x + pid) if not pid > 2 else total
    tl.device_assert(remaining <= 0, "the loop has ended")
    tl.store(y + pid, total + initial)
    tl.store(steps + pid, pid - remaining)


def _blocks(dtype: torch.dtype) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        x, y = _normal(_PROGRAMS, 8, 16).to(dtype), torch.zeros(_PROGRAMS, 8, 16, dtype=dtype)
        x[1, 2, 3] = torch.nan
        _block_kernel[(_PROGRAMS,)](x, y, 14, M=8, N=16)
        return [y]

    return run


def _flow() -> list[Tensor]:
    x, y, steps = _normal(_PROGRAMS), torch.zeros(_PROGRAMS), torch.zeros(_PROGRAMS, dtype=torch.int8)
    _flow_kernel[(_PROGRAMS,)](x, _normal(_PROGRAMS), y, steps, _PROGRAMS - 1)
    return [x, y, steps]


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


_CHECKS: dict[str, Callable[[], list[Tensor]]] = {
    "blocks of float32": _blocks(torch.float32),
    "blocks of bfloat16": _blocks(torch.bfloat16),
    "control flow": _flow,
}


def run() -> str:
    """Why programs cannot run in batches in this process; "" if batches have the same bits as one after another."""
    try:
        world.collect_replacements()
    except PackproofError as error:
        return str(error)
    for name, launch in _CHECKS.items():
        try:
            with Sanitizer():
                expected = launch()
            with BatchingSanitizer() as sanitizer:
                actual = launch()
        except Exception as error:
            return f"{name}: {type(error).__name__}: {error}"
        if not sanitizer.batches:
            reasons = "; ".join(map(str, BatchingSanitizer.unsupported_kernels.values()))
            return f"{name}: no batch ran: {reasons or 'it raised'}"
        if not all(
            torch.equal(w.view(torch.uint8), g.view(torch.uint8)) for w, g in zip(expected, actual, strict=True)
        ):
            return f"{name}: programs that run together have other bits than one after another"
    return ""
