"""The property `partition` on ranks: all ranks compute every case, and each rank judges its share."""

import dataclasses
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from packproof import refs
from packproof.base.errors import KernelFault, PackproofError
from packproof.bench.ranks.ours import ZIGZAG, parallel_kernel, without_activations
from packproof.bench.ranks.row import OpJudgement
from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.process.execution import InProcess
from packproof.parallel import Watch
from packproof.properties.calling import Call, Refusal, Result
from packproof.properties.cases import Case, Space, random_cases
from packproof.properties.declarations import Promises, describe_kernel
from packproof.properties.judgement import KernelUnderTest, first_violation, record_comparisons
from packproof.properties.laws import PARTITION, run_law_calls, with_cuts
from packproof.properties.ops import OPS

_MODELS_ONE_IN = 4
# promises of the references: a state handed over by one rank keeps its bits
_REFERENCES: Mapping[str, dict[str, Any]] = {
    "causal_conv1d": {"grid": "sequence"},
    "selective_scan": {"grid": "sequence", "chunk": 16, "state_entry": "carry"},
    "ssd": {"grid": "sequence", "chunk": 16, "state_entry": "carry"},
    "rope": {"grid": "token"},
}


@dataclass(frozen=True)
class RankGroup:
    """The ranks on which a bench runs."""

    ranks: int
    """Their number."""
    device: str
    """The device of this rank."""
    group: ProcessGroup | None = None
    """None for ranks simulated in this process."""
    watch: Watch | None = None
    """Waits for the group's ranks, and reports lost ones."""

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")


class _RecordingRunner(InProcess):
    """Records the results of calls on all ranks, and replays them on the rank that judges."""

    results: list[Result | KernelFault | Refusal]
    """The results of the case so far."""
    replayed_results: deque[Result | KernelFault | Refusal] | None = None
    """The results to replay; None while the ranks compute."""

    def run(self, call: Call) -> Result:
        if self.replayed_results is None:
            try:
                self.results.append(super().run(call))
            except (KernelFault, Refusal) as fault:
                self.results.append(fault)
        outcome = self.results[-1] if self.replayed_results is None else self.replayed_results.popleft()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def judge_op(op: str, dtype: str, count: int, rank_group: RankGroup) -> OpJudgement:
    """Judge this many cases of an op. Raises PackproofError if a rank is lost."""
    begin = time.perf_counter()
    function = parallel_kernel(op, None if rank_group.on_gpu else refs, rank_group.group, rank_group.watch)
    promises, declared_op = _promises(op, rank_group), OPS[ZIGZAG.get(op, op)]
    space = Space(
        declared_op, dtype, promises, frozenset(describe_kernel(function)["parameters"]), on_gpu=rank_group.on_gpu
    )
    kernel = KernelUnderTest(declared_op, _RecordingRunner(function, rank_group.device), promises, takes_cuts=True)
    cases, cases_at_once = cases_of(space, rank_group, count), 1 if rank_group.group is None else rank_group.ranks
    failures, bits = [], []
    for start in range(0, len(cases), cases_at_once):
        concurrent_cases = cases[start : start + cases_at_once]
        runs = [_compute_case(kernel, case, rank_group) for case in concurrent_cases]
        if rank_group.rank < len(concurrent_cases):
            case_failures, case_bits = _judge_case(kernel, concurrent_cases[rank_group.rank], runs[rank_group.rank])
            failures += case_failures
            bits += case_bits
    shares = [(failures, bits)]
    if rank_group.group is not None:
        shares = [([], [])] * rank_group.ranks
        dist.all_gather_object(shares, (failures, bits), group=rank_group.group)
    failures, bits = ([x for share in parts for x in share] for parts in zip(*shares, strict=True))
    return OpJudgement(op, dtype, len(cases), len(bits), sum(bits), tuple(failures), time.perf_counter() - begin)


def _compute_case(
    kernel: KernelUnderTest, case: Case, rank_group: RankGroup
) -> Sequence[Result | KernelFault | Refusal]:
    """The results of a case's calls, on every rank."""
    if rank_group.group is not None and rank_group.watch is not None:
        rank_group.watch.arrive(rank_group.group, f"partition of {kernel.op.name}, {case}")
    runner = kernel.runner
    assert isinstance(runner, _RecordingRunner)
    kernel.cache.discard_results()
    runner.results, runner.replayed_results = [], None
    try:
        run_law_calls(kernel, case)
    except (KernelFault, Refusal) as fault:
        if rank_group.watch is not None and rank_group.watch.lost:
            raise PackproofError(rank_group.watch.lost) from fault
    return list(runner.results)


def _judge_case(
    kernel: KernelUnderTest, case: Case, runs: Sequence[Result | KernelFault | Refusal]
) -> tuple[list[str], list[bool]]:
    """A line if the case fails, and for each comparison whether it was bit for bit."""
    runner = kernel.runner
    assert isinstance(runner, _RecordingRunner)
    kernel.cache.discard_results()
    runner.replayed_results = deque(runs)
    with record_comparisons() as case_comparisons:
        try:
            violation = first_violation(kernel, PARTITION, case)
            lines = [] if violation is None else violation.lines()
        except Refusal as refusal:
            lines = [f"refused: {refusal}"]
    bits = [comparison.allowed is None for comparison in case_comparisons]
    return [f"{kernel.op.name} {case}: {' | '.join(lines)}"] if lines else [], bits


def _promises(op: str, rank_group: RankGroup) -> Promises:
    """The promises of the kernel or reference, reduced to those that hold on ranks.

    A kernel keeps its own, with two exceptions. Bits change if more than one rank hands on its state; and the chunks of
    a `ZigZag` do not begin at the cuts of a case. The references keep bits on two ranks, in cases without activations.
    """
    if not rank_group.on_gpu:
        return Promises(**(_REFERENCES.get(op, {}) if rank_group.ranks == 2 else {}))
    promises = BUILTIN_KERNELS[ZIGZAG.get(op, op)].declaration("cuda").promises
    assert promises is not None
    if op in ZIGZAG and promises.grid != "token":
        return dataclasses.replace(promises, grid=None)
    return promises if rank_group.ranks == 2 else dataclasses.replace(promises, state_entry=None)


def cases_of(space: Space, rank_group: RankGroup, count: int) -> list[Case]:
    """Golden cuts first, then random ones. With a GPU, one case in four has the sizes of models."""
    cases = list(_with_cuts_for_ranks(with_cuts(space, []), rank_group.ranks))[:count]
    seed = 0
    while len(cases) < count:
        seed += 1
        new_cases = with_cuts(space, random_cases(space, count, seed))
        cases = list(dict.fromkeys([*cases, *_with_cuts_for_ranks(new_cases, rank_group.ranks)]))
    for k in range(0, count, _MODELS_ONE_IN) if space.model_sizes else ():
        if cases[k].n_tokens <= space.max_tokens:
            size = space.model_sizes[k // _MODELS_ONE_IN % len(space.model_sizes)]
            cases[k] = cases[k].replace(sizes=tuple(size.items()))
    keeps_bits = not rank_group.on_gpu and rank_group.ranks == 2
    return [without_activations(case) if keeps_bits else case for case in cases[:count]]


def _with_cuts_for_ranks(cases: Sequence[Case], ranks: int) -> Iterator[Case]:
    """The cases with one cut less than ranks: their first cuts, filled up with cuts at random tokens."""
    for case in cases:
        cuts, rng = (case.cuts or ())[: ranks - 1], random.Random(f"{case.seed} {case.lengths}")
        extra_cuts = [rng.randint(0, case.n_tokens) for _ in range(ranks - 1 - len(cuts))]
        yield case.replace(cuts=tuple(sorted([*cuts, *extra_cuts])))
