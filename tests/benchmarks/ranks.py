"""Packs cut over real ranks: correct beside one rank, and how fast SSD and the scan are on all of them.

torchrun --standalone --nproc-per-node 2 -m tests.benchmarks.ranks [--tokens 262144] [--cases 7] [--json ranks.json]

Each process is a rank, with a GPU and NCCL where there are GPUs, else with gloo and the references: that shows that the
script runs, and nothing of speed. First the property `partition` judges the four ops of packproof.parallel, on so many
packs of each as `--cases` says, in fp32 and bf16. Then a pack of `--tokens` tokens in bf16, one document and many, is
run forward and backward on one GPU and on all, beside the sum of the parts of which docs/scaling.md makes its
predictions: the kernels over a rank's tokens alone, and the two all-gathers. Times are medians of the slowest rank.
Exit code 1 if a case fails.

python -m tests.benchmarks.ranks --simulated 4 [--cases 7] judges the same on ranks simulated on one GPU, without times.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from packproof import kernels, parallel, refs
from packproof.harness.engine.violations import broken
from packproof.harness.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, random_cases
from packproof.properties.declaration import describe
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws import partition
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from tests.parallel import ours

ON_GPU = torch.cuda.is_available()
SIZES: dict[str, dict[str, int]] = {  # those of docs/bench.md; small on a CPU
    "ssd": {"h": 64, "p": 64, "n": 128} if ON_GPU else {"h": 2, "p": 4, "n": 3},
    "selective_scan": {"d": 4096, "n": 16} if ON_GPU else {"d": 4, "n": 3},
}
TOKENS = ("x", "dt", "u", "delta", "B", "C", "z")
MEAN = 646  # tokens of a document, where there are many
ROUNDS = 7


@dataclass(frozen=True)
class Row:
    """Milliseconds of an op on a layout. parts: of a rank, by name; predicted: their sum."""

    op: str
    layout: str
    ranks: int
    tokens: int
    one: float
    all: float
    parts: Mapping[str, float]

    @property
    def predicted(self) -> float:
        return sum(self.parts.values())

    @property
    def rate(self) -> float:
        """How many times as fast as one rank."""
        return self.one / self.all


def start(device: torch.device) -> dist.ProcessGroup:
    given: dict[str, Any] = {"device_id": device} if ON_GPU else {}
    dist.init_process_group("nccl" if ON_GPU else "gloo", timeout=timedelta(seconds=60), **given)
    world = dist.group.WORLD
    assert world is not None
    return world


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        print(text, flush=True)


def cases_of(space: Space, ranks: int, count: int) -> list[Case]:
    """Golden cuts first, of every second case in the sizes of models where there is a GPU, then random ones."""
    golden = partition.PARTITION.suited(space, [])
    partition._ONE_DRAWN_CASE_IN = 1
    drawn = partition.PARTITION.suited(space, random_cases(space, count, seed=1))
    cases = [c.replace(cuts=(c.cuts or ())[: ranks - 1]) for c in (*golden, *drawn) if c.n_tokens < 600]
    models = space.model_sizes
    for k in range(0, min(count, len(cases)), 4) if models else ():
        cases[k] = cases[k].replace(sizes=tuple(models[k // 4 % len(models)].items()))
    return cases[:count]


def judged(
    op: str, dtype: str, ranks: int, group: dist.ProcessGroup | None, device: torch.device, count: int
) -> tuple[int, list[str]]:
    """How many cases were judged, and what fails; on the first rank. The others compute with it. group: None for ranks
    that are simulated."""
    function = ours.ours(op, None if ON_GPU else refs, group)
    promises = Promises(grid="token" if op == "rope" else "sequence", chunk=16)
    if not ON_GPU:
        promises = Promises()  # the bits of torch's functions of many tokens depend on how many
    space = Space(OPS[op], dtype, promises, frozenset(describe(function)["parameters"]), on_gpu=ON_GPU)
    runner = InProcess(function, str(device))
    kernel = KernelUnderTest(OPS[op], runner, promises, takes_cuts=True)
    cases, failed = cases_of(space, ranks, count), []
    for case in cases:
        if group is None or group.rank() == 0:
            found = broken(kernel, partition.PARTITION, case)
            failed += [] if found is None else [f"{op} {case}: {' | '.join(found.lines())}"]
        else:
            sample = kernel.sample(case)
            kernel.remembered(sample)
            partition._cut_by_the_kernel(kernel, sample, case)
    return len(cases), failed


def inputs(op: str, tokens: int, device: torch.device) -> dict[str, Tensor]:
    """The same on every rank."""
    g = torch.Generator(device).manual_seed(0)
    sizes = SIZES[op]
    width = (sizes["h"], sizes["p"]) if op == "ssd" else (sizes["d"],)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=g, device=device, dtype=dtype)

    B, C = (normal(tokens, 1, sizes["n"]) for _ in range(2))
    if op == "ssd":
        heads, exact = sizes["h"], partial(normal, dtype=torch.float32)
        return {
            **{"x": normal(tokens, *width), "dt": normal(tokens, heads), "A": -exact(heads).abs(), "B": B, "C": C},
            **{"D": exact(heads), "dt_bias": exact(heads) - 4},
        }
    u, delta, z = (normal(tokens, *width) for _ in range(3))
    A = -torch.arange(1.0, sizes["n"] + 1, device=device).expand(*width, -1).contiguous()
    D, bias = normal(*width, dtype=torch.float32), normal(*width, dtype=torch.float32) - 4
    return {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": bias}


def trained(call: Callable[..., Tensor], given: Mapping[str, Tensor]) -> Callable[[], object]:
    """A run forward and backward, with gradients of all inputs."""
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
    dy = torch.ones_like(next(iter(given.values())))
    return lambda: torch.autograd.grad(call(**leaves), [*leaves.values()], dy)


def milliseconds(group: dist.ProcessGroup, run: Callable[[], object], device: torch.device) -> float:
    """The median over rounds of the time of the slowest rank."""
    for _ in range(2):
        run()
    times = []
    for _ in range(ROUNDS if ON_GPU else 2):
        dist.barrier(group)
        _synchronise()
        begin = time.perf_counter()
        run()
        _synchronise()
        spent = torch.tensor([time.perf_counter() - begin], device=device)
        dist.all_reduce(spent, dist.ReduceOp.MAX, group=group)
        times.append(1e3 * float(spent))
    return statistics.median(times)


def _synchronise() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def timed(op: str, name: str, lengths: list[int], group: dist.ProcessGroup, device: torch.device) -> Row:
    tokens, softplus = sum(lengths), {f"{'dt' if op == 'ssd' else 'delta'}_softplus": True}
    offsets = [0, *accumulate(lengths)]
    shard = parallel.Shard(offsets, group)
    whole = inputs(op, tokens, device)
    mine = {n: x[shard.rows].contiguous() if n in TOKENS else x for n, x in whole.items()}
    kernel = getattr(kernels if ON_GPU else refs, op)
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=device)
    given = {} if ON_GPU else {"kernel": kernel}
    across = trained(partial(getattr(parallel, op), shard=shard, **given, **softplus), mine)
    alone = trained(partial(kernel, cu_seqlens=shard.cu_seqlens(device), **softplus), mine)
    parts = {"rank": milliseconds(group, alone, device)}
    if shard.is_cut:
        parts["two all-gathers"] = gathers(op, shard, device)
    times = milliseconds(group, across, device)
    del mine, across, alone
    one = milliseconds(group, trained(partial(kernel, cu_seqlens=cu_seqlens, **softplus), whole), device)
    return Row(op, name, group.size(), tokens, one, times, parts)


def gathers(op: str, shard: parallel.Shard, device: torch.device) -> float:
    """Milliseconds of both all-gathers."""
    sizes = SIZES[op]
    state = torch.zeros(sizes["h"] * (sizes["p"] * sizes["n"] + 1) if op == "ssd" else 2 * sizes["d"] * sizes["n"])
    state = state.to(device)
    gathered = [torch.empty_like(state) for _ in range(shard.ranks)]
    return 2 * milliseconds(shard.group, lambda: dist.all_gather(gathered, state, group=shard.group), device)


def report(rows: list[Row]) -> str:
    lines = ["| op | layout | tokens | ranks | one, ms | all, ms | rate | predicted, ms | parts, ms |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for r in rows:
        parts = ", ".join(f"{name} {t:.2f}" for name, t in r.parts.items())
        lines.append(
            f"| {r.op} | {r.layout} | {r.tokens:,} | {r.ranks} | {r.one:.2f} | {r.all:.2f} | {r.rate:.2f} x | "
            f"{r.predicted:.2f} | {parts} |"
        )
    return "\n".join(lines)


def judged_all(ranks: int, group: dist.ProcessGroup | None, device: torch.device, cases: int) -> list[str]:
    failed: list[str] = []
    for op in ours.OPS:
        for dtype in ("float32", "bfloat16"):
            begin = time.perf_counter()
            count, wrong = judged(op, dtype, ranks, group, device, cases)
            seconds = time.perf_counter() - begin
            say(f"partition {op} {dtype}: {count} judged, {len(wrong)} failed, {seconds:.1f} s")
            for line in wrong:
                say(f"    {line}")
            failed += wrong
    return failed


def compare(group: dist.ProcessGroup, device: torch.device, tokens: int) -> list[Row]:
    """One GPU and all, on one document and on many."""
    count = max(tokens // MEAN, 3)
    many = [tokens // count] * (count - 1)
    layouts = {"one document": [tokens], "many documents": [*many, tokens - sum(many)]}
    return [timed(op, name, lengths, group, device) for op in SIZES for name, lengths in layouts.items()]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=262_144 if ON_GPU else 96)
    options.add_argument("--cases", type=int, default=7, help="packs judged for each op and dtype")
    options.add_argument("--json", help="write the rows to this file")
    options.add_argument("--simulated", type=int, help="so many ranks in this process, without times")
    chosen = options.parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    group = None if chosen.simulated else start(device)
    ranks = chosen.simulated if group is None else group.size()
    where = torch.cuda.get_device_name(device) if ON_GPU else "CPU"
    say(f"{ranks} {'simulated ' if group is None else ''}ranks on {where}, torch {torch.__version__}")
    failed = judged_all(ranks, group, device, chosen.cases)
    if group is not None:
        rows = compare(group, device, chosen.tokens)
        say(report(rows))
        if chosen.json and group.rank() == 0:
            Path(chosen.json).write_text(json.dumps({"device": where, "rows": [asdict(row) for row in rows]}, indent=1))
        dist.barrier(group)
        dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
