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
from packproof.base.axes import role
from packproof.base.errors import PackproofError
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.settings import setting
from packproof.bench.ranks.judge import RankGroup
from packproof.bench.ranks.ours import ZIGZAG
from packproof.bench.ranks.row import Row
from packproof.harness.report.formats import markdown_table, numbers, texts
from packproof.layers import Mamba2Block
from packproof.parallel.attention import cached_exchange
from packproof.parallel.cut import Cut
from packproof.parallel.exchange import all_gather
from packproof.properties.ops import OPS
from packproof.refs.attention_options import reaches

GPU_TOKENS, CPU_TOKENS = 262_144, 96
MEAN = 646  # tokens per document in "many documents"
_DRAWN_ROWS = 4093  # rows to draw and repeat
_TOKEN_DIVISOR = 4  # divides the tokens of attention, whose work is quadratic, and of a block, which keeps more memory
_COUNTS = numbers("tokens", "ranks", "one, ms", "all, ms", "rate", "predicted, ms")
_COLUMNS = (*texts("op", "layout"), *_COUNTS, *texts("parts, ms"))
Inputs = Mapping[str, Tensor]
_BLOCKS: Mapping[bool, dict[str, Any]] = {  # on a GPU or not
    True: {"d_model": 2048, "d_state": 128, "headdim": 64, "ngroups": 8},
    False: {"d_model": 8, "d_state": 3, "headdim": 2, "ngroups": 8},
}


class RankClock:
    """Medians over rounds of the time of the slowest rank. Raises PackproofError if a rank is lost meanwhile.

    A round is several runs in a row, as in training: after the first one the host is ahead of the GPU.
    """

    def __init__(self, rank_group: RankGroup) -> None:
        assert rank_group.group is not None
        assert rank_group.watch is not None
        self._rank_group, self._group, self._watch = rank_group, rank_group.group, rank_group.watch
        self._rounds, self._runs_per_round = (5, 4) if rank_group.on_gpu else (2, 1)

    def milliseconds(self, label: str, run: Callable[[], object]) -> float:
        self._watch.arrive(self._group, label)
        for _ in range(2):
            run()
        times = []
        for _ in range(self._rounds):
            self._max_over_ranks(0.0, label)  # a barrier: all ranks begin together
            begin = time.perf_counter()
            for _ in range(self._runs_per_round):
                run()
            self._wait(label)
            times.append(1e3 * self._max_over_ranks(time.perf_counter() - begin, label) / self._runs_per_round)
        return statistics.median(times)

    def _max_over_ranks(self, seconds: float, label: str) -> float:
        """The maximum over all ranks."""
        x = torch.tensor([seconds], device=self._rank_group.device)
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self._group)
        self._wait(label)
        return float(x)

    def _wait(self, label: str) -> None:
        """Wait for the GPU, but not for one that waits for a lost rank."""
        if not self._rank_group.on_gpu:
            return
        event, deadline = torch.cuda.Event(), time.monotonic() + self._watch.seconds
        event.record()
        while not event.query():
            if time.monotonic() > deadline:
                absent_ranks = self._watch.absent(self._group, self._watch.seconds) or "all ranks are there"
                raise PackproofError(
                    f"rank {self._rank_group.rank} of {self._rank_group.ranks}, {label}: the GPU did not end within "
                    f"{self._watch.seconds:g} s; {absent_ranks}"
                )


def timed_rows(ops: Collection[str], tokens: int, rank_group: RankGroup) -> Iterator[Row]:
    """A row for each op and layout, and one of the block."""
    clock = RankClock(rank_group)
    for op in (op for op in ops if ZIGZAG.get(op) != "rope"):
        for layout in _layouts(tokens // _TOKEN_DIVISOR if "attention" in op else tokens):
            yield _time_op(clock, op, layout, rank_group)
    if divides_groups(rank_group):
        yield _time_block(clock, next(_layouts(tokens // _TOKEN_DIVISOR)), rank_group)


def _layouts(tokens: int) -> Iterator[BenchLayout]:
    yield BenchLayout("one document", (tokens,))
    count = max(tokens // MEAN, 3)
    lengths = [tokens // count] * (count - 1)
    yield BenchLayout("many documents", (*lengths, tokens - sum(lengths)))


def _time_op(clock: RankClock, title: str, layout: BenchLayout, rank_group: RankGroup) -> Row:
    group, device, label = rank_group.group, torch.device(rank_group.device), f"{title}, {layout.name}"
    assert group is not None
    op, shard_class = ZIGZAG.get(title, title), parallel.ZigZag if title in ZIGZAG else parallel.Shard
    full_inputs, token_inputs, options = _inputs(op, layout, rank_group)
    offsets = [0, *accumulate(layout.lengths)]
    shard: parallel.Shard | parallel.ZigZag = shard_class(offsets, group)
    rank_inputs = {n: x[shard.rows].contiguous() if n in token_inputs else x for n, x in full_inputs.items()}
    kernel = getattr(kernels if rank_group.on_gpu else refs, op)
    kernel_argument = {} if rank_group.on_gpu else {"kernel": kernel}
    all_ranks_run = training_run(
        op, partial(getattr(parallel, op), shard=shard, **kernel_argument, **options), rank_inputs
    )
    if op == "attention":
        parts = _attention_parts(clock, label, shard, partial(kernel, **options), full_inputs, rank_inputs)
    else:
        rank_run = training_run(op, partial(kernel, cu_seqlens=shard.cu_seqlens(device), **options), rank_inputs)
        parts = {"rank": clock.milliseconds(f"{label}, the tokens of a rank", rank_run)}
        if shard.is_cut and op in MESSAGES:
            parts["two all-gathers"] = sum(
                _all_gather_ms(clock, f"{label}, all-gather", n_elements, shard, full_inputs)
                for n_elements in MESSAGES[op](full_inputs)
            )
        del rank_run
    all_ranks_ms = clock.milliseconds(f"{label}, on all ranks", all_ranks_run)
    del rank_inputs, all_ranks_run  # frees memory for all tokens on one rank
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=device)
    single_rank_run = training_run(op, partial(kernel, cu_seqlens=cu_seqlens, **options), full_inputs)
    single_rank_ms = clock.milliseconds(f"{label}, on one", single_rank_run)
    return Row(title, layout.name, rank_group.ranks, layout.tokens, single_rank_ms, all_ranks_ms, parts)


def _attention_parts(
    clock: RankClock, label: str, cut: Cut, kernel: Callable[..., Tensor], full_inputs: Inputs, rank_inputs: Inputs
) -> dict[str, float]:
    """The parts of attention: a rank's kernels, given their keys, and both exchanges of keys and values."""
    exchange, device = cached_exchange(cut, reaches((-1, -1), causal=True)), full_inputs["q"].device
    calls = []
    for read_range in exchange.calls[cut.rank]:
        inputs = {
            n: full_inputs[n][slice(*(read_range.tokens if n == "q" else read_range.keys))].contiguous()
            for n in full_inputs
        }
        offsets, keys = cut.cu_seqlens(device, read_range.offsets), cut.cu_seqlens(device, read_range.key_offsets)
        calls.append(training_run("attention", partial(kernel, cu_seqlens=offsets, cu_seqlens_k=keys), inputs))
    parts = {"rank": clock.milliseconds(f"{label}, the queries of a rank", lambda: [call() for call in calls])}
    if cut.is_cut:
        kv = torch.cat([rank_inputs["k"].flatten(1), rank_inputs["v"].flatten(1)], 1)
        received_keys = exchange.fetch(kv)
        parts["two exchanges"] = clock.milliseconds(f"{label}, keys", lambda: exchange.fetch(kv))
        parts["two exchanges"] += clock.milliseconds(
            f"{label}, gradients", lambda: exchange.return_gradients(received_keys, kv)
        )
    return parts


def _inputs(
    op: str, layout: BenchLayout, rank_group: RankGroup
) -> tuple[dict[str, Tensor], set[str], Mapping[str, Any]]:
    """The tensors of a call, the same on every rank; the names of those along tokens; the options."""
    op_setting = setting(OPS[op], rank_group.device.partition(":")[0], {}, None)
    sizes = {axis: layout.longest if n == "longest" else n for axis, n in op_setting.sizes.items()}
    short_layout = BenchLayout(layout.name, (min(layout.tokens, _DRAWN_ROWS),))
    dtype = "bfloat16" if rank_group.on_gpu else "float32"
    sample = dataclasses.replace(op_setting, sizes=sizes).sample(OPS[op], short_layout, dtype, 0)
    token_inputs = {name for name in sample.inputs if role(sample.axes[name]) == "token"}
    rows = torch.arange(layout.tokens, device=rank_group.device) % short_layout.tokens
    device_inputs = {name: x.to(rank_group.device) for name, x in sample.inputs.items()}
    return (
        {name: x[rows] if name in token_inputs else x for name, x in device_inputs.items()},
        token_inputs,
        op_setting.options,
    )


# elements sent by a rank, forward and backward; in the dtype of the tokens for the convolution, else fp32
MESSAGES: Mapping[str, Callable[[Inputs], tuple[int, int]]] = {
    "causal_conv1d": lambda inputs: (inputs["x"].shape[1] * (inputs["weight"].shape[1] - 1),) * 2,
    "selective_scan": lambda inputs: (2 * inputs["A"].numel(), inputs["A"].numel()),
    "ssd": lambda inputs: (_states(inputs) + inputs["A"].numel(), _states(inputs)),
}


def _states(inputs: Inputs) -> int:
    return math.prod(inputs["x"].shape[1:]) * inputs["B"].shape[-1]


def _all_gather_ms(clock: RankClock, label: str, n_elements: int, shard: Cut, inputs: Inputs) -> float:
    """The time in which each rank sends so many elements to all ranks: a message as large as those of the op."""
    tokens = next(iter(inputs.values()))
    is_convolution = "weight" in inputs  # it sends tokens; the other ops send fp32 states
    message = torch.zeros(n_elements, dtype=tokens.dtype if is_convolution else torch.float32, device=tokens.device)
    return clock.milliseconds(label, lambda: all_gather(shard, message, label))


def training_run(op: str, call: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    """A run forward and backward, with the gradients of all differentiable inputs."""
    leaves = {n: x.detach().requires_grad_(n not in OPS[op].constants) for n, x in inputs.items()}
    wrt, dy = [x for x in leaves.values() if x.requires_grad], torch.ones_like(next(iter(inputs.values())))
    return lambda: torch.autograd.grad(call(**leaves), wrt, dy)


def divides_groups(rank_group: RankGroup) -> bool:
    """Whether the ranks divide the groups of the block."""
    return bool(_BLOCKS[rank_group.on_gpu]["ngroups"] % rank_group.ranks == 0)


def make_block(rank_group: RankGroup, dtype: torch.dtype) -> Mamba2Block:
    """The full block, the same on all ranks."""
    torch.manual_seed(0)
    mamba_block = Mamba2Block(**_BLOCKS[rank_group.on_gpu], ops=kernels if rank_group.on_gpu else refs)
    return mamba_block.to(rank_group.device, dtype)


def _time_block(clock: RankClock, layout: BenchLayout, rank_group: RankGroup) -> Row:
    assert rank_group.group is not None
    dtype = torch.bfloat16 if rank_group.on_gpu else torch.float32
    full_block = make_block(rank_group, dtype)
    split_block = parallel.TensorParallelMamba2(full_block, rank_group.group)
    width = full_block.in_proj.in_features
    u = torch.randn(layout.tokens, width, generator=torch.Generator().manual_seed(0)).to(rank_group.device, dtype)
    cu_seqlens = torch.tensor([0, *accumulate(layout.lengths)], dtype=torch.int32, device=rank_group.device)
    name = "tensor-parallel Mamba-2"

    def run(module: torch.nn.Module) -> Callable[[], object]:
        leaf, dy = u.detach().requires_grad_(), torch.ones_like(u)
        wrt = [leaf, *module.parameters()]
        return lambda: torch.autograd.grad(module(leaf, cu_seqlens=cu_seqlens), wrt, dy)

    parts = {"rank": clock.milliseconds(f"{name}, the heads of a rank", run(split_block.part))}
    parts["two all-reduces"] = 2 * clock.milliseconds(
        f"{name}, all-reduce", lambda: dist.all_reduce(u.clone(), group=rank_group.group)
    )
    all_ranks_ms = clock.milliseconds(f"{name}, on all ranks", run(split_block))
    single_rank_ms = clock.milliseconds(f"{name}, on one", run(full_block))
    return Row("mamba2", layout.name, rank_group.ranks, layout.tokens, single_rank_ms, all_ranks_ms, parts)


def table(rows: Collection[Row]) -> str:
    return "\n".join(markdown_table(_COLUMNS, map(_cells, rows)))


def _cells(row: Row) -> tuple[str, ...]:
    times = f"{row.single_rank_ms:.2f}", f"{row.all_ranks_ms:.2f}", f"{row.rate:.2f} x", f"{row.predicted:.2f}"
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in row.parts.items())
    return (row.op, row.layout, f"{row.tokens:,}", str(row.ranks), *times, parts)
