"""Triton kernels with the sizes of their source in all places. None of them is launched."""

# mypy: allow-untyped-defs, allow-untyped-decorators

import triton
import triton.language as tl

ANNOTATED: tl.constexpr = 4_001
WRAPPED = tl.constexpr(4_002)


@triton.jit
def _helper(x):
    return x % 4_003


@triton.jit
def _kernel(x, t, B: tl.constexpr, C: tl.constexpr = 4_004):
    rows = tl.arange(0, WRAPPED * 2) + ANNOTATED
    tl.store(x + rows, _helper(rows), mask=rows < t)


_CONFIGS = tuple(triton.Config({"B": size, "name": "a"}) for size in (4_005, 4_006))
_autotuned = triton.autotune(list(_CONFIGS), key=["t"])(_kernel)
_heuristic = triton.heuristics({"C": lambda arguments: 4_007 if arguments["t"] > 4_008 else 32})(_autotuned)
_tuned_heuristic = triton.autotune([triton.Config({"B": 4_009})], key=["t"])(triton.heuristics({})(_kernel))
OF_KERNEL = [4_001, 4_002, 4_003, 4_004, 8_004]


def plain(x):
    _kernel[(1,)](x, len(x), B=4_010)


def autotuned(x):
    _autotuned[(1,)](x, len(x))


def heuristic(x):
    _heuristic[lambda meta: (meta["B"],)](x, len(x))


def tuned_heuristic(x):
    _tuned_heuristic[(1,)](x, len(x))
