"""`python -m tests.benchmarks.blocks`: one Mamba-2 block, ours beside mamba-ssm's, with the same parameters.

Each is called for training on a pack of 65,536 tokens in bf16, mamba-ssm's with seq_idx, so that its convolution and
its scan know the documents. Times are of the GPU, medians; "kept" is what forward leaves for backward. Without a GPU a
few tokens run through the references: that shows that the script runs, and nothing else.

Rows come as they are measured: first ours alone, then, in the same rounds, ours beside mamba-ssm's, whose kernels are
tuned on the first layout for all.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from packproof import kernels, refs
from packproof.bench.kernels.clocks import clock_for
from packproof.bench.kernels.layouts import TOKENS, BenchLayout, named_layouts
from packproof.bench.kernels.timing import LIMITS, Run, Tensors, measure, measure_footprint
from packproof.layers import Mamba2Block

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16
LAYOUTS = ("L1", "L2", "L3")


OPS = kernels if DEVICE == "cuda" else refs


def blocks(
    d_model: int, metadata: Mapping[str, Tensor], *, peer: bool
) -> Iterator[tuple[str, nn.Module, dict[str, Any]]]:
    """Name, block and keyword arguments of each: ours, and mamba-ssm's if it is asked for."""
    ours = partial(Mamba2Block, d_model, ops=OPS)
    boundaries = {"cu_seqlens": metadata["cu_seqlens"]}
    yield "packproof", ours(), boundaries
    yield "packproof, recompute", ours(recompute=True), boundaries
    if peer:
        from mamba_ssm.modules.mamba2 import Mamba2  # noqa: PLC0415  (where it is installed)

        yield "mamba-ssm", Mamba2(d_model), {"seq_idx": metadata["seq_idx"]}


def called(block: nn.Module, metadata: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The block as a function of u and its parameters, by name."""

    def call(u: Tensor, **parameters: Tensor) -> Tensor:
        y: Tensor = functional_call(block, parameters, (u,), dict(metadata))
        return y

    return call


def runs(layout: BenchLayout, d_model: int, *, peer: bool) -> dict[str, Run]:
    """All blocks on one layout, with the parameters of the first."""
    generator = torch.Generator().manual_seed(0)
    u, dy = (torch.randn(1, layout.tokens, d_model, generator=generator).to(DEVICE, DTYPE) for _ in range(2))
    offsets = torch.tensor([0, *layout.lengths]).cumsum(0).to(DEVICE, torch.int32)
    document = refs.seq_idx_from_cu_seqlens(offsets, layout.tokens)[None].int()
    torch.manual_seed(0)
    found, state = {}, None
    for name, block, metadata in blocks(d_model, {"cu_seqlens": offsets, "seq_idx": document}, peer=peer):
        state = block.state_dict() if state is None else state
        block.load_state_dict(state, strict=True)
        parameters = {key: p.detach() for key, p in block.to(DEVICE, DTYPE).named_parameters()}
        tensors = Tensors({"u": u, **parameters}, ("u", *parameters), {}, (dy,))
        found[name] = Run(called(block, metadata), tensors, gradients=True)
    return found


def table(layout: BenchLayout, d_model: int, *, peer: bool) -> Iterator[str]:
    """A row for each block."""
    ready = runs(layout, d_model, peer=peer)
    kept = {name: measure_footprint(run, DEVICE).kept_bytes or 0 for name, run in ready.items()}
    outputs = {name: run.forward()[0].detach() for name, run in ready.items()}
    first = outputs["packproof"]
    apart = {name: float((y - first).abs().max() / first.abs().max()) for name, y in outputs.items()}
    measured = measure(ready, clock_for(DEVICE), LIMITS[DEVICE], lambda _: True)
    for name, found in measured.items():
        times = " | ".join(f"{found.spreads[key].median:.2f}" for key in ("forward", "backward", "both"))
        yield f"| {layout.name} | {name} | {times} | {kept[name] / 2**20:.0f} | {apart[name]:.1g} |"


def compile_side_by_side() -> None:
    """What Triton's autotuner compares is compiled on all cores before it is timed; what it chooses stays its own."""
    from triton import AsyncCompileMode  # noqa: PLC0415  (where mamba-ssm is)
    from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

    shipped, cores = Autotuner.prune_configs, ThreadPoolExecutor(os.cpu_count())

    def prune_configs(tuner: Any, given: dict[str, Any]) -> Any:
        configs = shipped(tuner, given)
        with AsyncCompileMode(cores, ignore_errors=True):
            for config in configs:
                tuner.fn.run(*tuner.nargs.values(), **{**given, **config.all_kwargs(), "warmup": True})
        return configs

    Autotuner.prune_configs = prune_configs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d-model", type=int, default=2048 if DEVICE == "cuda" else 32)
    parser.add_argument("--tokens", type=int, default=TOKENS if DEVICE == "cuda" else 16)
    given = parser.parse_args()
    began, installed = time.monotonic(), DEVICE == "cuda" and find_spec("mamba_ssm") is not None
    if installed:
        compile_side_by_side()
    print("| layout | block | forward, ms | backward, ms | both, ms | kept, MiB | output differs by |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for peer in (False, True) if installed else (False,):
        for layout in named_layouts(LAYOUTS, given.tokens):
            for row in table(layout, given.d_model, peer=peer):
                print(row, flush=True)
            print(f"{layout.name}: done after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
