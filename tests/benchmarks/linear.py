"""`python -m tests.benchmarks.linear`: linear attention, simple GLA and retention beside ssd, whose kernels they have.

All have the same shapes: 64 heads of 64 channels with 128 states, one head of keys, 65,536 tokens of bf16. Times are of
the GPU, medians of rounds in which each runs once; a ratio is to ssd in the same rounds, and the command fails where
one passes 1.1. Without a GPU a few tokens run through the references: that shows that the script runs, nothing else.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from packproof import kernels, refs
from packproof.bench.kernels.clocks import clock_for
from packproof.bench.kernels.layouts import TOKENS, BenchLayout, named_layouts
from packproof.bench.kernels.results import PassName
from packproof.bench.kernels.timing import LIMITS, Run, Tensors, measure

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS = kernels if DEVICE == "cuda" else refs
SIZES = {"h": 64, "p": 64, "n": 128} if DEVICE == "cuda" else {"h": 2, "p": 4, "n": 4}
PASSES: tuple[PassName, ...] = ("forward", "backward", "both")
MOST = 1.1  # times what ssd takes


def runs(layout: BenchLayout, states: bool) -> dict[str, Run]:
    """The four ops on one layout, each with gradients of all that it takes."""
    T, h, p, n = layout.tokens, *SIZES.values()
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    offsets = torch.tensor([0, *layout.lengths]).cumsum(0).to(DEVICE, torch.int32)
    x, B, C, step = normal(T, h, p), normal(T, 1, n), normal(T, 1, n), normal(T, h).abs() / 8
    rate = -normal(h, dtype=torch.float32).abs()
    family = {"q": C, "k": B, "v": x}
    inputs: dict[str, dict[str, Tensor]] = {
        "ssd": {"x": x, "dt": step, "A": rate, "B": B, "C": C},
        "linear_attention": family,
        "simple_gla": {**family, "g": -step},
        "retention": {**family, "decay": rate},
    }
    options: dict[str, Any] = {"cu_seqlens": offsets, "return_final_states": states}
    dy = normal(T, h, p)

    def cotangents(op: str) -> tuple[Tensor, ...]:
        shape = (h, p, n) if op == "ssd" else (h, n, p)
        return dy, normal(len(layout.lengths), *shape, dtype=torch.float32)

    return {
        op: Run(getattr(OPS, op), Tensors(given, tuple(given), options, cotangents(op)[: 1 + states]), gradients=True)
        for op, given in inputs.items()
    }


def rows(layout: BenchLayout, states: bool) -> Iterator[tuple[str, float]]:
    """A row of the table for each op, and its largest ratio."""
    measured = measure(runs(layout, states), clock_for(DEVICE), LIMITS[DEVICE], lambda _: True)
    ssd = measured["ssd"].spreads
    for op, found in measured.items():
        times = {name: found.spreads[name].median for name in PASSES}
        ratios = {name: time / ssd[name].median for name, time in times.items()}
        cells = " | ".join(f"{times[name]:.3f} | {ratios[name]:.3f}" for name in PASSES)
        yield f"| {layout.name} | {op} | {cells} |", max(ratios.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS if DEVICE == "cuda" else 16)
    parser.add_argument("--layouts", nargs="+", default=["L1", "L2"])
    parser.add_argument("--states", action="store_true", help="return the final states, and take their gradients")
    given = parser.parse_args()
    print("| layout | op | forward, ms | ratio | backward, ms | ratio | both, ms | ratio |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    slowest = 0.0
    for layout in named_layouts(given.layouts, given.tokens):
        for row, ratio in rows(layout, given.states):
            print(row, flush=True)
            slowest = max(slowest, ratio)
    return int(DEVICE == "cuda" and slowest > MOST)


if __name__ == "__main__":
    sys.exit(main())
