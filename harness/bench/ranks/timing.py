"""Times of ops and of a tensor-parallel block, forward and backward: on one rank, on all ranks, and by part."""

# mypy: disable-error-code="no-untyped-call"

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from packproof import kernels, parallel, refs
from packproof.harness.bench.layouts import BenchLayout
from packproof.harness.bench.ranks.judge import OnRanks
from packproof.harness.bench.ranks.ours import ZIGZAG
from packproof.harness.bench.ranks.row import Row
from packproof.harness.bench.settings import setting
from packproof.layers import Mamba2Block
from packproof.parallel.attention import exchange_of
from packproof.parallel.cut import Cut
from packproof.parallel.exchange import all_gathered
from packproof.properties.ops import OPS
from packproof.refs.attention_options import reaches
from packproof.refs.axes import role
from packproof.refs.errors import PackproofError

GPU_TOKENS, CPU_TOKENS = 262_144, 96
MEAN = 646  # tokens per document in "many documents"
_DRAWN = 4093  # rows to draw and repeat
_FEWER = 4  # divides the tokens of attention, whose work is quadratic, and of a block, which keeps more memory
Inputs = Mapping[str, Tensor]
_BLOCKS: Mapping[bool, dict[str, Any]] = {  # on a GPU or not
    True: {"d_model": 2048, "d_state": 128, "headdim": 64, "ngroups": 8},
    False: {"d_model": 8, "d_state": 3, "headdim": 2, "ngroups": 8},
}


class RankClock:
    """Medians over rounds of the time of the slowest rank. Raises PackproofError if a rank is lost meanwhile.

    A round is several runs in a row, as in training: after the first one the host is ahead of the GPU.
    """

    def __init__(self, place: OnRanks) -> None:
        assert place.group is not None
        assert place.watch is not None
        self._place, self._group, self._watch = place, place.group, place.watch
        self._rounds, self._in_a_row = (5, 4) if place.on_gpu else (2, 1)

    def milliseconds(self, what: str, run: Callable[[], object]) -> float:
        self._watch.arrive(self._group, what)
        for _ in range(2):
            run()
        times = []
        for _ in range(self._rounds):
            self._longest(0.0, what)  # a barrier: all ranks begin together
            begin = time.perf_counter()
            for _ in range(self._in_a_row):
                run()
            self._wait(what)
            times.append(1e3 * self._longest(time.perf_counter() - begin, what) / self._in_a_row)
        return statistics.median(times)

    def _longest(self, spent: float, what: str) -> float:
        """The maximum over all ranks."""
        x = torch.tensor([spent], device=self._place.device)
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self._group)
        self._wait(what)
        return float(x)

    def _wait(self, what: str) -> None:
        """Wait for the GPU, but not for one that waits for a lost rank."""
        if not self._place.on_gpu:
            return
        done, until = torch.cuda.Event(), time.monotonic() + self._watch.seconds
        done.record()
        while not done.query():
            if time.monotonic() > until:
                told = self._watch.absent(self._group, self._watch.seconds) or "all ranks are there"
                raise PackproofError(
                    f"rank {self._place.rank} of {self._place.ranks}, {what}: the GPU did not end within "
                    f"{self._watch.seconds:g} s; {told}"
                )


def timed(ops: Collection[str], tokens: int, place: OnRanks) -> Iterator[Row]:
    """A row for each op and layout, and one of the block."""
    clock = RankClock(place)
    for op in (op for op in ops if ZIGZAG.get(op) != "rope"):
        for layout in _layouts(tokens // _FEWER if "attention" in op else tokens):
            yield _op(clock, op, layout, place)
    if splits(place):
        yield _block(clock, next(_layouts(tokens // _FEWER)), place)


def _layouts(tokens: int) -> Iterator[BenchLayout]:
    yield BenchLayout("one document", (tokens,))
    count = max(tokens // MEAN, 3)
    many = [tokens // count] * (count - 1)
    yield BenchLayout("many documents", (*many, tokens - sum(many)))


def _op(clock: RankClock, title: str, layout: BenchLayout, place: OnRanks) -> Row:
    group, device, what = place.group, torch.device(place.device), f"{title}, {layout.name}"
    assert group is not None
    op, made = ZIGZAG.get(title, title), parallel.ZigZag if title in ZIGZAG else parallel.Shard
    whole, along, options = _inputs(op, layout, place)
    offsets = [0, *accumulate(layout.lengths)]
    shard: parallel.Shard | parallel.ZigZag = made(offsets, group)
    mine = {n: x[shard.rows].contiguous() if n in along else x for n, x in whole.items()}
    kernel = getattr(kernels if place.on_gpu else refs, op)
    given = {} if place.on_gpu else {"kernel": kernel}
    across = trained(op, partial(getattr(parallel, op), shard=shard, **given, **options), mine)
    if op == "attention":
        parts = _of_attention(clock, what, shard, partial(kernel, **options), whole, mine)
    else:
        alone = trained(op, partial(kernel, cu_seqlens=shard.cu_seqlens(device), **options), mine)
        parts = {"rank": clock.milliseconds(f"{what}, the tokens of a rank", alone)}
        if shard.is_cut and op in MESSAGES:
            gathers = [_gather(clock, f"{what}, all-gather", n, shard, whole) for n in MESSAGES[op](whole)]
            parts["two all-gathers"] = sum(gathers)
        del alone
    times = clock.milliseconds(f"{what}, on all ranks", across)
    del mine, across  # frees memory for all tokens on one rank
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=device)
    single = trained(op, partial(kernel, cu_seqlens=cu_seqlens, **options), whole)
    one = clock.milliseconds(f"{what}, on one", single)
    return Row(title, layout.name, place.ranks, layout.tokens, one, times, parts)


def _of_attention(
    clock: RankClock, what: str, cut: Cut, kernel: Callable[..., Tensor], whole: Inputs, mine: Inputs
) -> dict[str, float]:
    """The parts of attention: a rank's kernels, given their keys, and both exchanges of keys and values."""
    exchange, device = exchange_of(cut, reaches((-1, -1), causal=True)), whole["q"].device
    calls = []
    for read in exchange.reads[cut.rank]:
        given = {n: whole[n][slice(*(read.tokens if n == "q" else read.keys))].contiguous() for n in whole}
        offsets, keys = cut.cu_seqlens(device, read.offsets), cut.cu_seqlens(device, read.key_offsets)
        calls.append(trained("attention", partial(kernel, cu_seqlens=offsets, cu_seqlens_k=keys), given))
    parts = {"rank": clock.milliseconds(f"{what}, the queries of a rank", lambda: [call() for call in calls])}
    if cut.is_cut:
        kv = torch.cat([mine["k"].flatten(1), mine["v"].flatten(1)], 1)
        fetched = exchange.fetched(kv)
        parts["two exchanges"] = clock.milliseconds(f"{what}, keys", lambda: exchange.fetched(kv))
        parts["two exchanges"] += clock.milliseconds(f"{what}, gradients", lambda: exchange.returned(fetched, kv))
    return parts


def _inputs(op: str, layout: BenchLayout, place: OnRanks) -> tuple[dict[str, Tensor], set[str], Mapping[str, Any]]:
    """The tensors of a call, the same on every rank; the names of those along tokens; the options."""
    chosen = setting(OPS[op], place.device.partition(":")[0], {}, None)
    sizes = {axis: layout.longest if n == "longest" else n for axis, n in chosen.sizes.items()}
    few = BenchLayout(layout.name, (min(layout.tokens, _DRAWN),))
    dtype = "bfloat16" if place.on_gpu else "float32"
    drawn = dataclasses.replace(chosen, sizes=sizes).sample(OPS[op], few, dtype, 0)
    along = {name for name in drawn.inputs if role(drawn.axes[name]) == "token"}
    rows = torch.arange(layout.tokens, device=place.device) % few.tokens
    moved = {name: x.to(place.device) for name, x in drawn.inputs.items()}
    return {name: x[rows] if name in along else x for name, x in moved.items()}, along, chosen.options


# elements sent by a rank, forward and backward; in the dtype of the tokens for the convolution, else fp32
MESSAGES: Mapping[str, Callable[[Inputs], tuple[int, int]]] = {
    "causal_conv1d": lambda given: (given["x"].shape[1] * (given["weight"].shape[1] - 1),) * 2,
    "selective_scan": lambda given: (2 * given["A"].numel(), given["A"].numel()),
    "ssd": lambda given: (_states(given) + given["A"].numel(), _states(given)),
}


def _states(given: Inputs) -> int:
    return math.prod(given["x"].shape[1:]) * given["B"].shape[-1]


def _gather(clock: RankClock, what: str, numbers: int, shard: Cut, given: Inputs) -> float:
    first = next(iter(given.values()))
    message = torch.zeros(numbers, dtype=first.dtype if "weight" in given else torch.float32, device=first.device)
    return clock.milliseconds(what, lambda: all_gathered(shard, message, what))


def trained(op: str, call: Callable[..., Tensor], given: Mapping[str, Tensor]) -> Callable[[], object]:
    """A run forward and backward, with the gradients of all differentiable inputs."""
    leaves = {n: x.detach().requires_grad_(n not in OPS[op].constants) for n, x in given.items()}
    wrt, dy = [x for x in leaves.values() if x.requires_grad], torch.ones_like(next(iter(given.values())))
    return lambda: torch.autograd.grad(call(**leaves), wrt, dy)


def splits(place: OnRanks) -> bool:
    """Whether the ranks divide the groups of the block."""
    return bool(_BLOCKS[place.on_gpu]["ngroups"] % place.ranks == 0)


def block(place: OnRanks, dtype: torch.dtype) -> Mamba2Block:
    """The full block, the same on all ranks."""
    torch.manual_seed(0)
    made = Mamba2Block(**_BLOCKS[place.on_gpu], ops=kernels if place.on_gpu else refs)
    return made.to(place.device, dtype)


def _block(clock: RankClock, layout: BenchLayout, place: OnRanks) -> Row:
    assert place.group is not None
    dtype = torch.bfloat16 if place.on_gpu else torch.float32
    whole = block(place, dtype)
    split = parallel.TensorParallelMamba2(whole, place.group)
    width = whole.in_proj.in_features
    u = torch.randn(layout.tokens, width, generator=torch.Generator().manual_seed(0)).to(place.device, dtype)
    cu_seqlens = torch.tensor([0, *accumulate(layout.lengths)], dtype=torch.int32, device=place.device)
    name = "tensor-parallel Mamba-2"

    def run(module: torch.nn.Module) -> Callable[[], object]:
        leaf, dy = u.detach().requires_grad_(), torch.ones_like(u)
        wrt = [leaf, *module.parameters()]
        return lambda: torch.autograd.grad(module(leaf, cu_seqlens=cu_seqlens), wrt, dy)

    parts = {"rank": clock.milliseconds(f"{name}, the heads of a rank", run(split.part))}
    parts["two all-reduces"] = 2 * clock.milliseconds(
        f"{name}, all-reduce", lambda: dist.all_reduce(u.clone(), group=place.group)
    )
    times = clock.milliseconds(f"{name}, on all ranks", run(split))
    one = clock.milliseconds(f"{name}, on one", run(whole))
    return Row("mamba2", layout.name, place.ranks, layout.tokens, one, times, parts)


def table(rows: Collection[Row]) -> str:
    lines = ["| op | layout | tokens | ranks | one, ms | all, ms | rate | predicted, ms | parts, ms |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for r in rows:
        parts = ", ".join(f"{name} {t:.2f}" for name, t in r.parts.items())
        lines.append(
            f"| {r.op} | {r.layout} | {r.tokens:,} | {r.ranks} | {r.one:.2f} | {r.all:.2f} | {r.rate:.2f} x | "
            f"{r.predicted:.2f} | {parts} |"
        )
    return "\n".join(lines)
