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
from packproof.harness.bench.ranks.ours import ZIGZAG, ours, plain
from packproof.harness.engine.violations import broken
from packproof.harness.execution.execute import InProcess
from packproof.harness.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.parallel import Watch
from packproof.properties.call import Call, KernelFault, Refused, Result
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, random_cases
from packproof.properties.comparison import comparisons
from packproof.properties.declaration import describe
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.partition import PARTITION, take_part, with_cuts
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.refs.errors import PackproofError
from packproof.refs.wording import counted

_MODELS_ONE_IN = 4
# promises of the references: a state handed over by one rank keeps its bits
_REFERENCES: Mapping[str, dict[str, Any]] = {
    "causal_conv1d": {"grid": "sequence"},
    "selective_scan": {"grid": "sequence", "chunk": 16, "state_entry": "carry"},
    "ssd": {"grid": "sequence", "chunk": 16, "state_entry": "carry"},
    "rope": {"grid": "token"},
}


@dataclass(frozen=True)
class OnRanks:
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


@dataclass(frozen=True)
class JudgedOp:
    """The cases of one op at one dtype, judged."""

    op: str
    dtype: str
    cases: int
    """Packs with their cuts."""
    compared: int
    """Compared tensors and parts of tensors."""
    bitwise: int
    """Of these, the bit-for-bit comparisons."""
    failed: tuple[str, ...]
    """A line for each case that fails."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"partition {self.op} {self.dtype}: {counted(self.cases, 'case')}, {self.compared} compared, "
            f"{self.bitwise} of them bit for bit, {len(self.failed)} failed, {self.seconds:.1f} s"
        )


class _Kept(InProcess):
    """Records the results of calls on all ranks, and replays them on the rank that judges."""

    made: list[Result | KernelFault | Refused]
    """The results of the case so far."""
    again: deque[Result | KernelFault | Refused] | None = None
    """The results to replay; None while the ranks compute."""

    def run(self, call: Call) -> Result:
        if self.again is None:
            try:
                self.made.append(super().run(call))
            except (KernelFault, Refused) as fault:
                self.made.append(fault)
        found = self.made[-1] if self.again is None else self.again.popleft()
        if isinstance(found, Exception):
            raise found
        return found


def judged(op: str, dtype: str, count: int, place: OnRanks) -> JudgedOp:
    """Judge this many cases of an op. Raises PackproofError if a rank is lost."""
    begin = time.perf_counter()
    function = ours(op, None if place.on_gpu else refs, place.group, place.watch)
    promises, declared = _promises(op, place), OPS[ZIGZAG.get(op, op)]
    space = Space(declared, dtype, promises, frozenset(describe(function)["parameters"]), on_gpu=place.on_gpu)
    kernel = KernelUnderTest(declared, _Kept(function, place.device), promises, takes_cuts=True)
    cases, sharing = cases_of(space, place, count), 1 if place.group is None else place.ranks
    failed, bits = [], []
    for first in range(0, len(cases), sharing):
        together = cases[first : first + sharing]
        runs = [_computed(kernel, case, place) for case in together]
        if place.rank < len(together):
            line, made = _judged_here(kernel, together[place.rank], runs[place.rank])
            failed += line
            bits += made
    shares = [(failed, bits)]
    if place.group is not None:
        shares = [([], [])] * place.ranks
        dist.all_gather_object(shares, (failed, bits), group=place.group)
    failed, bits = ([x for share in parts for x in share] for parts in zip(*shares, strict=True))
    return JudgedOp(op, dtype, len(cases), len(bits), sum(bits), tuple(failed), time.perf_counter() - begin)


def _computed(kernel: KernelUnderTest, case: Case, place: OnRanks) -> Sequence[Result | KernelFault | Refused]:
    """The results of a case's calls, on every rank."""
    if place.group is not None and place.watch is not None:
        place.watch.arrive(place.group, f"partition of {kernel.op.name}, {case}")
    runner: Any = kernel.runner
    kernel.renew()
    runner.made, runner.again = [], None
    try:
        take_part(kernel, case)
    except (KernelFault, Refused) as fault:
        if place.watch is not None and place.watch.lost:
            raise PackproofError(place.watch.lost) from fault
    return list(runner.made)


def _judged_here(
    kernel: KernelUnderTest, case: Case, runs: Sequence[Result | KernelFault | Refused]
) -> tuple[list[str], list[bool]]:
    """A line if the case fails, and for each comparison whether it was bit for bit."""
    runner: Any = kernel.runner
    kernel.renew()
    runner.again = deque(runs)
    with comparisons() as made:
        try:
            violation = broken(kernel, PARTITION, case)
            told = [] if violation is None else violation.lines()
        except Refused as refused:
            told = [f"refused: {refused}"]
    bits = [comparison.allowed is None for comparison in made]
    return [f"{kernel.op.name} {case}: {' | '.join(told)}"] if told else [], bits


def _promises(op: str, place: OnRanks) -> Promises:
    """The promises of the kernel or reference, reduced to those that hold on ranks.

    A kernel keeps its own, with two exceptions. Bits change if more than one rank hands on its state; and the chunks of
    a `ZigZag` do not begin at the cuts of a case. The references keep bits on two ranks, in cases without activations.
    """
    if not place.on_gpu:
        return Promises(**(_REFERENCES.get(op, {}) if place.ranks == 2 else {}))
    promises = BUILTIN_KERNELS[ZIGZAG.get(op, op)].declaration("cuda").promises
    assert promises is not None
    if op in ZIGZAG and promises.grid != "token":
        return dataclasses.replace(promises, grid=None)
    return promises if place.ranks == 2 else dataclasses.replace(promises, state_entry=None)


def cases_of(space: Space, place: OnRanks, count: int) -> list[Case]:
    """Golden cuts first, then random ones. With a GPU, one case in four has the sizes of models."""
    cases = list(_cut_for(with_cuts(space, []), place.ranks))[:count]
    seed = 0
    while len(cases) < count:
        seed += 1
        drawn = with_cuts(space, random_cases(space, count, seed))
        cases = list(dict.fromkeys([*cases, *_cut_for(drawn, place.ranks)]))
    for k in range(0, count, _MODELS_ONE_IN) if space.model_sizes else ():
        if cases[k].n_tokens <= space.max_tokens:
            size = space.model_sizes[k // _MODELS_ONE_IN % len(space.model_sizes)]
            cases[k] = cases[k].replace(sizes=tuple(size.items()))
    bits = not place.on_gpu and place.ranks == 2
    return [plain(case) if bits else case for case in cases[:count]]


def _cut_for(cases: Sequence[Case], ranks: int) -> Iterator[Case]:
    """The cases with one cut less than ranks: their first cuts, filled up with cuts at random tokens."""
    for case in cases:
        cuts, rng = (case.cuts or ())[: ranks - 1], random.Random(f"{case.seed} {case.lengths}")
        more = [rng.randint(0, case.n_tokens) for _ in range(ranks - 1 - len(cuts))]
        yield case.replace(cuts=tuple(sorted([*cuts, *more])))
