"""A convolution in Triton whose configurations differ in tiles, in the order of the sum, and one in its boundaries."""

import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import packproof

CHECKS: list[packproof.Accuracy] = []  # one for each tuning


def accurate(configs: list[triton.Config], arguments: dict[str, Any], **launch: Any) -> list[triton.Config]:
    """Triton's `early_config_prune`: the configurations within the budget, at the arguments of the call."""
    grid, _ = launch.pop("grid"), launch.pop("warmup", None)
    inputs = {"x": arguments["x"], "weight": arguments["weight"]}
    check = packproof.accuracy("causal_conv1d", inputs, arguments["cu_seqlens"])
    CHECKS.append(check)

    def run(config: triton.Config) -> Tensor:
        _conv.fn[grid](**arguments, **launch, **config.all_kwargs())
        return arguments["y"]

    return check.accurate(configs, run)


def seconds(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
    """In place of Triton's bench, which needs a GPU."""
    start = time.perf_counter()
    call()
    return [time.perf_counter() - start] * 3


CONFIGS = [
    triton.Config({"BLOCK": 16, "STEPS": 6, "REVERSED": False}),
    triton.Config({"BLOCK": 32, "STEPS": 6, "REVERSED": True}),  # the taps in another order
    triton.Config({"BLOCK": 32, "STEPS": 2, "REVERSED": False}),  # finds the first four sequences alone
]


@triton.autotune(CONFIGS, ["n_sequences"], prune_configs_by={"early_config_prune": accurate}, do_bench=seconds)
@triton.jit
def _conv(
    x,
    weight,
    y,
    cu_seqlens,
    n_sequences,
    n_tokens,
    D: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    REVERSED: tl.constexpr,
):
    t, d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    low = tl.zeros([BLOCK], tl.int32)
    high = low + n_sequences
    for _ in tl.static_range(STEPS):  # the last sequence that starts at or before the token
        middle = (low + high) // 2
        before = (tl.load(cu_seqlens + middle) <= t) & (middle < n_sequences)
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    start = tl.load(cu_seqlens + low)
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(W):
        tap = W - 1 - k if REVERSED else k
        row = t - (W - 1) + tap
        value = tl.load(x + row * D + d, mask=(row >= start) & (t < n_tokens), other=0.0).to(tl.float32)
        total += value * tl.load(weight + d * W + tap).to(tl.float32)
    tl.store(y + t * D + d, total, mask=t < n_tokens)


def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    y = torch.empty_like(x)
    (T, D), W = x.shape, weight.shape[1]
    _conv[lambda meta: (triton.cdiv(T, meta["BLOCK"]), D)](x, weight, y, cu_seqlens, len(cu_seqlens) - 1, T, D=D, W=W)
    return y
