"""Triton kernels that a GPU could run only slowly, or not at all, as variants for the compile tier."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import replace

import triton
import triton.language as tl

from packproof.kernels.variant import Variant


@triton.jit
def _dot_kernel(a, b, c, K: tl.constexpr, B: tl.constexpr):
    i, k = tl.arange(0, B), tl.arange(0, K)
    left, right = tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] + i[None, :] * K)
    tl.store(c + i[:, None] * B + i[None, :], tl.dot(left, right, input_precision="ieee"))


@triton.jit
def _carried_kernel(x, y, B: tl.constexpr):
    total = 0
    for i in range(4):
        total += tl.load(x + i * B + tl.arange(0, B))
    tl.store(y + tl.arange(0, B), total)


@triton.jit
def _sum_kernel(x, y, B: tl.constexpr):
    tl.atomic_add(y, tl.sum(tl.load(x + tl.arange(0, B))))


@triton.jit
def _branch_kernel(x, y, out, width, wanted, STAGES: tl.constexpr):
    """x @ yᵀ of 32 rows, by the way the diagonal of xᵀ y; on Hopper only that is a product from shared memory."""
    row, column = tl.arange(0, 32), tl.arange(0, 64)
    total = tl.zeros((32, 32), tl.float32)
    for k in tl.range(0, width, 64, num_stages=STAGES):
        at = row[:, None] * width + (k + column)[None, :]
        a, b = tl.load(x + at), tl.load(y + at)
        total = tl.dot(a, tl.trans(b), total)
        if wanted != 0:
            products = tl.dot(tl.trans(a), b)
            tl.store(out + k + column, tl.sum(tl.where(column[:, None] == column[None, :], products, 0.0), 1))
    tl.store(out + width + row[:, None] * 32 + row[None, :], total)


def _dot(name: str, dtype: str, k: int, block: int) -> Variant:
    signature = {"a": f"*{dtype}", "b": f"*{dtype}", "c": "*fp32", "K": "constexpr", "B": "constexpr"}
    return Variant(name, _dot_kernel, signature, {"K": k, "B": block}, divisible=("a", "b", "c"))


def _line(name: str, kernel: object) -> Variant:
    return Variant(name, kernel, {"x": "*fp32", "y": "*fp32", "B": "constexpr"}, {"B": 16})


def good() -> list[Variant]:
    return [_dot("dot", "bf16", 64, 64), _line("sum", _sum_kernel)]


def bad() -> list[Variant]:
    return [
        _dot("oversized", "bf16", 2048, 32),
        _dot("tiny", "bf16", 4, 4),
        _dot("spilling", "fp32", 64, 64),
        replace(_dot("spilling as declared", "fp32", 64, 64), spills=1_000_000),
        _line("mistyped", _carried_kernel),
    ]


def pipelined() -> list[Variant]:
    signature = {"x": "*bf16", "y": "*bf16", "out": "*fp32", "width": "i32", "wanted": "i32", "STAGES": "constexpr"}
    divisible = ("x", "y", "out", "width")
    return [Variant(f"{n} stages", _branch_kernel, signature, {"STAGES": n}, divisible) for n in (1, 2, 3)]


@triton.constexpr_function
def _wait():
    """Called by the compiler: it does not go on."""
    __import__("time").sleep(1000)


@triton.jit
def _endless_kernel(x, y, B: tl.constexpr):
    _wait()


def endless() -> list[Variant]:
    return [_line("endless", _endless_kernel), _line("sum", _sum_kernel)]


@triton.constexpr_function
def _end():
    """Called by the compiler: ends the process that compiles."""
    __import__("os").abort()  # Triton refuses a function of C by its name


@triton.jit
def _fatal_kernel(x, y, B: tl.constexpr):
    _end()


def fatal() -> list[Variant]:
    return [_line("fatal", _fatal_kernel), _line("sum", _sum_kernel)]
