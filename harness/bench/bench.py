"""The bench: from a request to a stream of results. Nothing is timed that was not proven at the timed sizes first."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from packproof.harness.bench.clocks import Clock, clock_for, measure_ceilings
from packproof.harness.bench.contenders import Contender, contenders
from packproof.harness.bench.cost import costs
from packproof.harness.bench.layouts import BenchLayout
from packproof.harness.bench.proof import prove, spot_check
from packproof.harness.bench.results import (
    BenchFinished,
    BenchResult,
    BenchStarted,
    Event,
    LayoutFinished,
    Pass,
    SizeProof,
)
from packproof.harness.bench.settings import Setting, setting
from packproof.harness.bench.timing import Footprint, Run, Tensors, footprint, host_times, measure
from packproof.harness.engine.request import DEVICES
from packproof.harness.results.environment import environment
from packproof.harness.results.names import known
from packproof.harness.targets.location import Location
from packproof.harness.worker.parallel import on_every_core
from packproof.properties.call import Refused
from packproof.properties.sample import Sample
from packproof.refs.errors import UsageError

_SECONDS = {"cpu": 0.5, "cuda": 2.0}  # of rounds, for one op at one layout

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class BenchRequest:
    """What to time.

    layouts: one after the other. targets: none for packproof's own kernels. against: rivals, None for the usual ones.
    sizes: instead of the usual ones. inputs: optional inputs that are given, None for the usual ones.
    """

    layouts: tuple[BenchLayout, ...]
    targets: tuple[str, ...] = ()
    op: str | None = None
    against: tuple[str, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0


def run_bench(request: BenchRequest, clock: Clock | None = None) -> Iterator[Event]:
    """Prove and time what the request says; UsageError before the first event if that cannot be done."""
    known("device", request.device, DEVICES)
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    for layout in request.layouts:
        if not layout.tokens:
            raise UsageError(f"layout {layout.name}: it has no tokens, so there is nothing to time")
        if layout.tokens > _MOST_TOKENS:
            raise UsageError(f"layout {layout.name}: {layout.tokens} tokens; int32 cu_seqlens end at {_MOST_TOKENS}")
    plan = [
        (op, setting(op, request.device, request.sizes, request.inputs), group)
        for op, group in contenders(request.targets, request.op, request.against, request.device)
    ]
    empty = any(0 in layout.lengths for layout in request.layouts)
    started = time.monotonic()
    clock = clock or clock_for(request.device)
    yield BenchStarted(environment(request.device), measure_ceilings(request.device, clock), request.seed)
    proofs: list[SizeProof] = []
    for proof in _proofs([(contender, chosen) for _, chosen, group in plan for contender in group], request, empty):
        proofs.append(proof)
        yield proof
    proven = iter(proofs)
    for op, chosen, group in plan:
        judged = [(contender, next(proven)) for contender in group]
        for layout in request.layouts:
            yield LayoutFinished(tuple(_at_layout(judged, chosen, layout, request, clock)), matmul=op.matmul)
    yield BenchFinished(time.monotonic() - started)


def _proofs(
    all_of_them: Sequence[tuple[Contender, Setting]], request: BenchRequest, empty: bool
) -> Iterator[SizeProof]:
    """The proof of each, in their order; made side by side, since nothing is timed meanwhile."""

    def proof(number: int) -> Iterator[tuple[int, SizeProof]]:
        contender, chosen = all_of_them[number]
        yield number, prove(contender, chosen, request.dtype, request.device, request.seed, empty=empty)

    made: dict[int, SizeProof] = {}
    said = 0
    units = [partial(proof, n) for n in range(len(all_of_them))]
    for number, found in on_every_core(units, request.device, of=tuple[int, SizeProof]):
        made[number] = found
        while said in made:
            yield made[said]
            said += 1


def _at_layout(
    group: Sequence[tuple[Contender, SizeProof]],
    chosen: Setting,
    layout: BenchLayout,
    request: BenchRequest,
    clock: Clock,
) -> Iterator[BenchResult]:
    """The results at one layout: those that may be timed, once they are right there too, and the verdicts."""
    racers = [contender for contender, proof in group if proof.may_be_timed]
    race, channels = _Race({}, {}, {}), 1
    if racers:
        sample = chosen.sample(racers[0].job.op, layout, request.dtype, request.seed)
        channels = next(iter(sample.inputs.values()))[0].numel()
        race = _race(racers, sample, request.device, clock)
    for contender, proof in group:
        result = BenchResult(proof.op, contender.name, proof.setting, proof.dtype, layout, channels=channels)
        verdict = proof.text if proof.status == "failed" else race.verdicts.get(contender.name, "")
        if verdict:
            yield replace(result, verdict=verdict)
        elif contender.name in race.limits:
            yield replace(result, limit=race.limits[contender.name])
        elif contender.name in race.times:
            passes, kept = race.times[contender.name]
            yield replace(result, passes=passes, kept=kept)


@dataclass(frozen=True)
class _Race:
    """times: the passes of those that are right, and what they keep for backward. verdicts: on the others. limits: why
    others cannot run at this layout."""

    times: Mapping[str, tuple[tuple[Pass, ...], int | None]]
    verdicts: Mapping[str, str]
    limits: Mapping[str, str]


@dataclass(frozen=True)
class Ready:
    """runs: those that may be timed, warmed up, with what they allocate. verdicts: on the others; "" for the right.
    limits: why those cannot run here that decline, or need more memory than there is."""

    runs: Mapping[str, Run]
    footprints: Mapping[str, Footprint]
    verdicts: Mapping[str, str]
    limits: Mapping[str, str]


def ready(racers: Sequence[Contender], sample: Sample, device: str) -> Ready:
    """Check every racer at the very layout, and prepare those that are right for their timing."""
    functions = {c.name: _function(c) for c in racers}
    verdicts: dict[str, str] = {}
    limits: dict[str, str] = {}
    for racer in racers:
        try:
            verdicts[racer.name] = spot_check(racer, functions[racer.name], sample, device) if racer.packed else ""
        except Refused as refused:  # for lack of memory, or a layout that it does not take
            limits[racer.name] = str(refused)
    runs: dict[str, Run] = {}
    seen: dict[str, Footprint] = {}
    tensors = Tensors.of(sample, device)  # not before: the checks need the memory
    for racer in racers:
        if verdicts.get(racer.name) or racer.name in limits:
            continue
        run = Run(functions[racer.name], tensors, gradients=racer.job.declared.gradients)
        try:
            seen[racer.name] = footprint(run, device)
            runs[racer.name] = run
        except torch.OutOfMemoryError as error:
            limits[racer.name] = str(error).partition("\n")[0]
    return Ready(runs, seen, verdicts, limits)


def _race(racers: Sequence[Contender], sample: Sample, device: str, clock: Clock) -> _Race:
    """Time those that are right, turn by turn."""
    started = ready(racers, sample, device)
    times = {}
    for name, spreads in measure(started.runs, clock, _SECONDS[device]).items():
        run, seen = started.runs[name], started.footprints[name]
        cost, host = costs(sample, gradients=run.gradients), host_times(run, device)
        passes = tuple(Pass(p, spread, host.get(p), cost[p], seen.peak.get(p)) for p, spread in spreads.items())
        times[name] = passes, seen.kept
    return _Race(times, started.verdicts, started.limits)


def _function(contender: Contender) -> Callable[..., Any]:
    """The implementation in this process, where it is timed."""
    target = contender.job.kernel
    return Location.parse(target).load() if isinstance(target, str) else target
