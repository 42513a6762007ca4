"""`python -m tests.benchmarks.attention`: causal bf16 attention, 16 heads of 128, ours beside what else is installed.

First the relative L2 error of values and gradients against the reference in fp64, in every dtype. Then, with --tiles,
the times of tiles for each kernel, and of the best ones beside varlen_attn, FlexAttention and flash-attn 2, 3 and 4, in
TFLOP/s of the products that a causal mask lets through, forward and forward + backward, and how often the time that
reading and writing everything once takes. Tiles are compiled in parallel. Without a GPU a few tokens run through the
reference: that shows that the script runs, and nothing else.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor

from packproof import kernels, refs
from packproof.bench.kernels.clocks import Clock, clock_for, measure_ceilings
from packproof.bench.kernels.layouts import BenchLayout, equal_lengths, named_layouts
from packproof.properties.ops import flops

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GPU = DEVICE == "cuda"
TOKENS, CHANNELS, OF_A_TOKEN = (65_536, 128, 2048) if GPU else (96, 16, 32)
SHORT = (700, 1, 0, 129, 2000, 64, 1, 300) if GPU else (5, 1, 0, 20)
ROUNDS = 9 if GPU else 1
PROCESSES = 12 if GPU else 1
MOST_APART = 3e-3
OWN = kernels.attention if GPU else refs.attention
Shape = tuple[int, ...]  # queries, keys, warps, stages, registers, whether by TMA
CANDIDATES: Mapping[str, Sequence[Shape]] = {
    "fwd": [
        *(
            (64, 64, 4, 3, 0, 1),
            (64, 64, 4, 2, 0, 1),
            (64, 64, 4, 2, 168, 1),
            (64, 64, 4, 1, 168, 1),
            (64, 64, 4, 1, 168),
        ),
        *((64, 32, 4, 3, 168, 1), (64, 32, 4, 2, 168, 1), (64, 32, 4, 3, 128, 1), (64, 128, 4, 2, 0, 1)),
        *((128, 64, 8, 3, 0, 1), (128, 128, 8, 2, 0, 1), (128, 64, 8, 2, 128, 1), (128, 64, 8, 2, 128)),
    ],
    "q": [
        *(
            (64, 64, 4, 2, 0),
            (64, 64, 4, 2, 0, 1),
            (64, 64, 4, 3, 0, 1),
            (64, 32, 4, 2, 168, 1),
            (64, 32, 4, 3, 168, 1),
        ),
        *((128, 64, 8, 2, 0, 1), (64, 128, 4, 2, 0, 1), (64, 32, 4, 2, 168), (64, 64, 4, 2, 168)),
    ],
    "kv": [
        *((32, 128, 8, 3, 0), (32, 64, 4, 2, 0), (32, 64, 4, 3, 0), (32, 64, 4, 2, 0, 1), (32, 64, 4, 3, 0, 1)),
        *((64, 64, 4, 2, 0, 1), (32, 128, 8, 3, 0, 1), (32, 128, 8, 4, 0), (64, 64, 4, 2, 168), (16, 64, 4, 3, 0)),
    ],
}


def layouts() -> list[BenchLayout]:
    long = BenchLayout("4 x 1/4", equal_lengths(4, TOKENS))
    ones = BenchLayout("ones", (1,) * TOKENS)
    return [*named_layouts(("L1", "L2", "L3"), TOKENS), long, ones]


def tensors(tokens: int, dtype: torch.dtype, channels: int, heads: int | None = None) -> list[Tensor]:
    """q, k, v and dy."""
    shape = (tokens, OF_A_TOKEN // channels if heads is None else heads, channels)
    generator = torch.Generator(DEVICE).manual_seed(0)
    return [torch.randn(shape, generator=generator, device=DEVICE).to(dtype) for _ in range(4)]


def offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, torch.int32)


def gradients(attend: Attend, q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> list[Tensor]:
    """The value and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    y = attend(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def errors(channels: int, dtype: torch.dtype) -> list[str]:
    """The relative L2 error of the value and of each gradient, for several options, a line each."""
    options: list[dict[str, Any]] = [{"causal": True}]
    if channels == 128:
        options += [{}, {"window_size": (100, 7)}, {"causal": True, "softcap": 20.0}]
    given, found = tensors(sum(SHORT), dtype, channels, 4), []
    for one in options:
        called = one | {"cu_seqlens": offsets(SHORT)}
        got = gradients(partial(OWN, **called), *given)
        wanted = gradients(partial(refs.attention, **called), *(x.double() for x in given))
        apart = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True)]
        parts = ", ".join(f"{n} {e:.2e}" for n, e in zip(("y", "dq", "dk", "dv"), apart, strict=True))
        found.append(f"{channels} {str(dtype).removeprefix('torch.')} {one}: {parts}")
    return found


def with_tile(kernel: str, tile: Shape) -> None:
    """Let all launches of the kernel use the tile."""
    from packproof.kernels import attention_tiles as own  # noqa: PLC0415  (needs triton)

    shape = own.Tile(*tile[:5], tma=len(tile) > 5)
    own._TILES[kernel, "hopper"] = own._TILES[kernel, "nvidia"] = (shape, shape, shape)


def compile_tile(kernel: str, tile: Shape, channels: int) -> str:
    """Compile it by a call, in a process of its own; what went wrong, or ""."""
    from packproof.kernels import attention_tiles as own  # noqa: PLC0415

    usual = dict(own._TILES)
    with_tile(kernel, tile)
    given, called = tensors(700, torch.bfloat16, channels, 2), {"cu_seqlens": offsets((300, 400)), "causal": True}
    try:
        got = gradients(partial(kernels.attention, **called), *given)
        wanted = gradients(partial(refs.attention, **called), *(x.double() for x in given))
        apart = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80]
    finally:
        own._TILES.update(usual)
    return "" if apart <= MOST_APART else f"off by {apart:.1e}"


def timed(clock: Clock, work: Callable[[], object]) -> float:
    """Milliseconds, the median."""
    work()
    return median(clock.time(work)[1] for _ in range(ROUNDS))


def sweep(clock: Clock, wrong: Mapping[tuple[str, Shape], str], channels: int) -> Iterator[str]:
    """The time of each kernel with each tile on three layouts; keeps the tile with the least time on L1 and L2."""
    chosen = [one for one in layouts() if one.name in ("L1", "L2", "4 x 1/4")]
    given = {one.name: tensors(one.tokens, torch.bfloat16, channels) for one in chosen}
    for kernel, tiles in CANDIDATES.items():
        best: dict[Shape, float] = {}
        for tile in tiles:
            if wrong[kernel, tile]:
                yield f"{kernel} {tile}: {wrong[kernel, tile]}"
                continue
            with_tile(kernel, tile)
            times = {one.name: timed(clock, one_kernel(kernel, one, *given[one.name])) for one in chosen}
            best[tile] = times["L1"] + times["L2"]
            yield f"{kernel} {tile}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items())
        with_tile(kernel, min(best, key=lambda tile: best[tile]))


def one_kernel(kernel: str, layout: BenchLayout, q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> Callable[[], object]:
    """A call that launches the kernel, and next to nothing else."""
    from packproof.kernels import attention_launch as own  # noqa: PLC0415

    cu = offsets(layout.lengths)
    problem = own.AttentionProblem(q, k, v, None, cu, cu, -1, 0, q.shape[2] ** -0.5, 0.0)
    lse = q.new_empty(q.shape[1], len(q), dtype=torch.float32)
    y = problem.forward(lse)
    if kernel == "fwd":
        return partial(problem.forward, lse)
    delta, _ = problem.delta(y, dy, lse, None)
    return partial(problem.dq if kernel == "q" else problem.dk_dv, dy, lse, delta)


def others(layout: BenchLayout) -> Iterator[tuple[str, Attend]]:
    """The peers that are installed."""
    cu, longest = offsets(layout.lengths), layout.longest
    if not GPU:
        return
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415

        yield "varlen_attn", lambda q, k, v: _causal(varlen_attn, q, k, v, cu, cu, longest, longest)
    except ImportError:
        pass
    if find_spec("flash_attn_interface"):
        fa3 = import_module("flash_attn_interface").flash_attn_varlen_func

        yield "flash-attn 3", lambda q, k, v: _first(fa3(q, k, v, cu, cu, longest, longest, causal=True))
    if find_spec("flash_attn") and find_spec("flash_attn.cute"):
        fa4 = import_module("flash_attn.cute").flash_attn_varlen_func
        given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": longest, "max_seqlen_k": longest}
        yield "flash-attn 4", lambda q, k, v: _first(fa4(q, k, v, **given, causal=True))
    if find_spec("flash_attn_2_cuda"):
        fa2 = import_module("flash_attn").flash_attn_varlen_func
        yield "flash-attn 2", lambda q, k, v: fa2(q, k, v, cu, cu, longest, longest, causal=True)
    if layout.name != "ones":
        yield "FlexAttention", flex(cu, layout.tokens)


def _first(found: Any) -> Tensor:
    y: Tensor = found[0] if isinstance(found, tuple) else found
    return y


def _causal(varlen_attn: Any, *arguments: Any) -> Tensor:
    """torch has changed the name of the argument."""
    try:
        y: Tensor = varlen_attn(*arguments, window_size=(-1, 0))
    except TypeError:
        y = varlen_attn(*arguments, is_causal=True)
    return y


def flex(cu: Tensor, tokens: int) -> Attend:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: PLC0415

    document = refs.seq_idx_from_cu_seqlens(cu, tokens)
    mask = create_block_mask(
        lambda b, h, i, j: (document[i] == document[j]) & (i >= j), None, None, tokens, tokens, DEVICE, _compile=True
    )
    compiled: Any = torch.compile(flex_attention)
    return lambda q, k, v: compiled(*(x.transpose(0, 1)[None] for x in (q, k, v)), block_mask=mask)[0].transpose(0, 1)


def table(layout: BenchLayout, clock: Clock, bytes_per_ms: float, channels: int, *, flex_too: bool) -> Iterator[str]:
    """A row for each implementation."""
    q, k, v, dy = tensors(layout.tokens, torch.bfloat16, channels)
    sizes = {"hq": q.shape[1], "k": channels, "v": channels}
    forward, backward = flops.attention(sizes, layout.lengths, {"causal": True})
    least = 4 * q.numel() * q.itemsize / bytes_per_ms
    runs: dict[str, Attend] = {"packproof": partial(OWN, cu_seqlens=offsets(layout.lengths), causal=True)}
    runs |= {name: run for name, run in others(layout) if flex_too or name != "FlexAttention"}
    for name, attend in runs.items():
        try:
            ms = timed(clock, partial(attend, q, k, v))
            both = timed(clock, partial(gradients, attend, q, k, v, dy))
        except Exception as error:
            yield f"| {layout.name} | {name} | {type(error).__name__}: {str(error)[:60]} |"
            continue
        rates = f"{forward / ms / 1e9:.0f} | {both:.3f} | {(forward + backward) / both / 1e9:.0f}"
        yield f"| {layout.name} | {name} | {ms:.3f} | {rates} | {ms / least:.2f} |"


def kernels_of(layout: BenchLayout, channels: int) -> str:
    """The kernels of a call and of its backward pass, with the microseconds of each."""
    q, k, v, dy = tensors(layout.tokens, torch.bfloat16, channels)
    run = partial(gradients, partial(OWN, cu_seqlens=offsets(layout.lengths), causal=True), q, k, v, dy)
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    found = [(one.key, one.device_time_total) for one in profiled.key_averages()]
    return f"{layout.name}: " + ", ".join(
        f"{name[:40]} {us:.0f}" for name, us in sorted(found, key=lambda one: -one[1])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", action="store_true", help="time tiles, and go on with the best ones")
    parser.add_argument("--channels", type=int, default=CHANNELS, help="of a head; a token has 2048 in all")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too, whose compilation takes a minute")
    given = parser.parse_args()
    started = time.monotonic()
    judged = list(product((64, 128, 96, 256) if GPU else (16,), (torch.bfloat16, torch.float16, torch.float32)))
    shapes = [(kernel, tile) for kernel, tiles in CANDIDATES.items() for tile in tiles if given.tiles and GPU]
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        lines = [pool.submit(errors, *one) for one in judged]
        compiled = {one: pool.submit(compile_tile, *one, given.channels) for one in shapes}
        for future in lines:
            print("\n".join(future.result()), flush=True)
        wrong = {one: future.result() for one, future in compiled.items()}
    clock = clock_for(DEVICE)
    for line in sweep(clock, wrong, given.channels) if wrong else ():
        print(line, flush=True)
    print(f"[{time.monotonic() - started:.0f} s]", flush=True)
    copy = measure_ceilings(DEVICE, clock).copy / 1e3
    print("| layout | | forward, ms | TFLOP/s | both, ms | TFLOP/s | forward x bytes |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for layout in layouts():
        for row in table(layout, clock, copy, given.channels, flex_too=given.flex):
            print(row, flush=True)
    for layout in layouts() if GPU else ():
        print(kernels_of(layout, given.channels), flush=True)
    print(f"[{time.monotonic() - started:.0f} s]")


if __name__ == "__main__":
    main()
