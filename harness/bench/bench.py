"""The bench: from a request to a stream of results. Only what was first proven at the timed sizes is timed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from packproof.harness.bench.clocks import Clock, clock_for, measure_ceilings
from packproof.harness.bench.cost import costs
from packproof.harness.bench.implementations import Implementation, implementations
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
from packproof.harness.results.environment import environment
from packproof.harness.results.names import DEVICES, known
from packproof.harness.targets.location import Location
from packproof.harness.worker.parallel import on_every_core
from packproof.properties.call import Refused
from packproof.properties.cases.sample import Sample
from packproof.refs.errors import UsageError

_SECONDS = {"cpu": 0.5, "cuda": 2.0}  # of timed rounds, for one op at one layout

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class BenchRequest:
    """What to time.

    layouts: timed one after another. targets: empty for packproof's own kernels. against: baselines, None for the
    default ones. sizes: override the defaults. inputs: optional inputs to pass, None for the default ones.
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
    """Prove and time what is requested; UsageError before the first event if that is impossible."""
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
        for op, group in implementations(request.targets, request.op, request.against, request.device)
    ]
    empty = any(0 in layout.lengths for layout in request.layouts)
    started = time.monotonic()
    clock = clock or clock_for(request.device)
    yield BenchStarted(environment(request.device), measure_ceilings(request.device, clock), request.seed)
    proofs: list[SizeProof] = []
    for proof in _proofs(
        [(implementation, chosen) for _, chosen, group in plan for implementation in group], request, empty
    ):
        proofs.append(proof)
        yield proof
    proven = iter(proofs)
    for op, chosen, group in plan:
        judged = [(implementation, next(proven)) for implementation in group]
        for layout in request.layouts:
            yield LayoutFinished(tuple(_at_layout(judged, chosen, layout, request, clock)), matmul=op.matmul)
    yield BenchFinished(time.monotonic() - started)


def _proofs(pairs: Sequence[tuple[Implementation, Setting]], request: BenchRequest, empty: bool) -> Iterator[SizeProof]:
    """The proof of each, in order; they run in parallel, since nothing is timed meanwhile."""

    def proof(number: int) -> Iterator[tuple[int, SizeProof]]:
        implementation, chosen = pairs[number]
        yield number, prove(implementation, chosen, request.dtype, request.device, request.seed, empty=empty)

    made: dict[int, SizeProof] = {}
    reported = 0
    units = [partial(proof, n) for n in range(len(pairs))]
    for number, found in on_every_core(units, request.device, of=tuple[int, SizeProof]):
        made[number] = found
        while reported in made:
            yield made[reported]
            reported += 1


def _at_layout(
    group: Sequence[tuple[Implementation, SizeProof]],
    chosen: Setting,
    layout: BenchLayout,
    request: BenchRequest,
    clock: Clock,
) -> Iterator[BenchResult]:
    """The results at one layout: times of what is correct there too, and the verdicts."""
    candidates = [implementation for implementation, proof in group if proof.may_be_timed]
    timings, channels = _Timings({}, {}, {}), 1
    if candidates:
        sample = chosen.sample(candidates[0].job.op, layout, request.dtype, request.seed)
        channels = next(iter(sample.inputs.values()))[0].numel()
        timings = _time_together(candidates, sample, request.device, clock)
    for implementation, proof in group:
        result = BenchResult(proof.op, implementation.name, proof.setting, proof.dtype, layout, channels=channels)
        verdict = proof.text if proof.status == "failed" else timings.verdicts.get(implementation.name, "")
        if verdict:
            yield replace(result, verdict=verdict)
        elif implementation.name in timings.limits:
            yield replace(result, limit=timings.limits[implementation.name])
        elif implementation.name in timings.times:
            passes, kept = timings.times[implementation.name]
            yield replace(result, passes=passes, kept=kept)


@dataclass(frozen=True)
class _Timings:
    """times: the passes of correct implementations, and the bytes they keep for backward. verdicts: on incorrect ones.
    limits: why an implementation cannot run at this layout."""

    times: Mapping[str, tuple[tuple[Pass, ...], int | None]]
    verdicts: Mapping[str, str]
    limits: Mapping[str, str]


@dataclass(frozen=True)
class Ready:
    """runs: implementations to time, warmed up; footprints: what they allocate. verdicts: by name, "" if correct.
    limits: why an implementation declines or lacks memory here."""

    runs: Mapping[str, Run]
    footprints: Mapping[str, Footprint]
    verdicts: Mapping[str, str]
    limits: Mapping[str, str]


def ready(candidates: Sequence[Implementation], sample: Sample, device: str) -> Ready:
    """Check every candidate at this layout, and prepare the correct ones for timing."""
    functions = {c.name: _function(c) for c in candidates}
    verdicts: dict[str, str] = {}
    limits: dict[str, str] = {}
    for candidate in candidates:
        try:
            verdicts[candidate.name] = (
                spot_check(candidate, functions[candidate.name], sample, device) if candidate.packed else ""
            )
        except Refused as refused:  # too little memory, or an unsupported layout
            limits[candidate.name] = str(refused)
    runs: dict[str, Run] = {}
    seen: dict[str, Footprint] = {}
    tensors = Tensors.of(sample, device)  # not earlier: the checks need the memory
    for candidate in candidates:
        if verdicts.get(candidate.name) or candidate.name in limits:
            continue
        run = Run(functions[candidate.name], tensors, gradients=candidate.job.declared.gradients)
        try:
            seen[candidate.name] = footprint(run, device)
            runs[candidate.name] = run
        except torch.OutOfMemoryError as error:
            limits[candidate.name] = str(error).partition("\n")[0]
    return Ready(runs, seen, verdicts, limits)


def _time_together(candidates: Sequence[Implementation], sample: Sample, device: str, clock: Clock) -> _Timings:
    """Time the correct candidates in alternation."""
    started = ready(candidates, sample, device)
    times = {}
    for name, spreads in measure(started.runs, clock, _SECONDS[device]).items():
        run, seen = started.runs[name], started.footprints[name]
        cost, host = costs(sample, gradients=run.gradients), host_times(run, device)
        passes = tuple(Pass(p, spread, host.get(p), cost[p], seen.peak.get(p)) for p, spread in spreads.items())
        times[name] = passes, seen.kept
    return _Timings(times, started.verdicts, started.limits)


def _function(implementation: Implementation) -> Callable[..., Any]:
    """The function of an implementation, in this process."""
    target = implementation.job.kernel
    return Location.parse(target).load() if isinstance(target, str) else target
