"""The bench: from a request to a stream of results. Only implementations with a proof at the timed sizes are timed."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from packproof.harness.bench.clocks import Clock, clock_for, measure_ceilings
from packproof.harness.bench.compare import BETWEEN_RUNS, outcome, require_device, require_rows
from packproof.harness.bench.cost import costs
from packproof.harness.bench.file import PLACE, Place, Record, Timed, described, place
from packproof.harness.bench.implementations import Implementation, implementations, is_baseline
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
from packproof.harness.bench.timing import (
    LIMITS,
    Beside,
    Footprint,
    Measured,
    Run,
    Tensors,
    footprint,
    host_times,
    measure,
)
from packproof.harness.results.environment import environment
from packproof.harness.results.names import DEVICES, known
from packproof.harness.targets.location import Location
from packproof.harness.worker.parallel import on_every_core
from packproof.properties.call import Refused
from packproof.properties.cases.sample import Sample
from packproof.properties.op import Op
from packproof.refs.errors import UsageError

_CLOSE = 1.03  # the same code against itself: below this, more rounds hardly help

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class BenchRequest:
    """The kernels, baselines, sizes and layouts of one bench."""

    layouts: tuple[BenchLayout, ...]
    """Timed one after another."""
    targets: tuple[str, ...] = ()
    """The kernels under test; empty for packproof's own."""
    op: str | None = None
    against: tuple[str, ...] | None = None
    """The baselines; None for the default ones."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of axes, instead of the defaults."""
    inputs: tuple[str, ...] | None = None
    """Optional inputs to pass; None for the default ones."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The op's options, their values in text."""
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    """Threads of torch on a CPU; None for one."""
    seed: int = 0
    earlier: tuple[str, Record] | None = None
    """The file name and the record of a previous run. A row is timed for longer if it may be slower than there."""


Plan = list[tuple[Op, Setting, list[Implementation]]]


def run_bench(request: BenchRequest, clock: Clock | None = None) -> Iterator[Event]:
    """Prove and time the requested implementations; UsageError before the first event if that is impossible."""
    _require_names(request)
    threads = torch.get_num_threads()
    if request.device == "cpu":
        torch.set_num_threads(request.threads or 1)
    try:
        yield from _bench(request, clock)
    finally:
        torch.set_num_threads(threads)


def _bench(request: BenchRequest, clock: Clock | None) -> Iterator[Event]:
    here = environment(request.device)
    if request.earlier:
        path, earlier = request.earlier
        require_device(earlier, described(here.name, here.device, here.threads), path)
        known_now = [place("", "", "", request.dtype, layout) for layout in request.layouts]
        require_rows(earlier, [_named(p, without=("op", "implementation", "setting")) for p in known_now], path)
    plan = _plan(request)
    if request.earlier:
        require_rows(earlier, [_named(p) for p in _places(plan, request)], path)
    empty = any(0 in layout.lengths for layout in request.layouts)
    started = time.monotonic()
    clock = clock or clock_for(request.device)
    yield BenchStarted(here, measure_ceilings(request.device, clock), request.seed)
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


def _require_names(request: BenchRequest) -> None:
    """UsageError for a device, number of threads or layout without anything to time."""
    known("device", request.device, DEVICES)
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    if request.threads is not None and (request.device != "cpu" or request.threads < 1):
        raise UsageError(
            f"threads: {request.threads} on {request.device}; expected a whole number above zero, with --device cpu"
        )
    for layout in request.layouts:
        if not layout.tokens:
            raise UsageError(f"layout {layout.name}: it has no tokens, so there is nothing to time")
        if layout.tokens > _MOST_TOKENS:
            raise UsageError(f"layout {layout.name}: {layout.tokens} tokens; int32 cu_seqlens end at {_MOST_TOKENS}")


def _plan(request: BenchRequest) -> Plan:
    """By op, its setting and the implementations, each opened in its own process."""
    plan = []
    for op, group in implementations(request.targets, request.op, request.against, request.device):
        chosen = setting(op, request.device, request.sizes, request.inputs, request.options)
        plan.append((op, chosen.without(_not_taken(chosen, group, request)), group))
    return plan


def _not_taken(chosen: Setting, group: Sequence[Implementation], request: BenchRequest) -> set[str]:
    """Default inputs and options that a kernel under test does not take, unless the request names them.

    No kernel of the group gets them, so that their times can be compared.
    """
    asked = {*(request.inputs or ()), *request.options}
    tested = [implementation for implementation in group if not is_baseline(implementation.name)]
    return {name for implementation in tested for name in implementation.missing(chosen)} - asked


def _named(found: Place, without: Sequence[str] = ()) -> dict[str, object]:
    """The fields of a configuration, by name."""
    return {name: value for name, value in zip(PLACE, found, strict=True) if name not in without}


def _places(plan: Plan, request: BenchRequest) -> list[Place]:
    """The configurations at which this run may have rows."""
    return [
        place(op.name, implementation.name, str(chosen), request.dtype, layout)
        for op, chosen, group in plan
        for implementation in group
        for layout in request.layouts
    ]


def _proofs(pairs: Sequence[tuple[Implementation, Setting]], request: BenchRequest, empty: bool) -> Iterator[SizeProof]:
    """The proof of each implementation, in order. Proofs run in parallel, because nothing is timed meanwhile."""

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
    """The results at one layout: times of implementations that are correct there too, and the verdicts."""
    candidates = [implementation for implementation, proof in group if proof.may_be_timed]
    timings, channels = _Timings({}, {}, {}), 1
    if candidates:
        sample = chosen.sample(candidates[0].job.op, layout, request.dtype, request.seed)
        channels = next(iter(sample.inputs.values()))[0].numel()
        places = {p.implementation: place(p.op, p.implementation, p.setting, p.dtype, layout) for _, p in group}
        timings = _time_together(candidates, sample, request, clock, places)
    for implementation, proof in group:
        result = BenchResult(proof.op, implementation.name, proof.setting, proof.dtype, layout, channels=channels)
        verdict = proof.text if proof.status == "failed" else timings.verdicts.get(implementation.name, "")
        if verdict:
            yield replace(result, verdict=verdict)
        elif implementation.name in timings.limits:
            yield replace(result, limit=timings.limits[implementation.name])
        elif implementation.name in timings.times:
            passes, kept = timings.times[implementation.name]
            calm = tuple(p for p in passes if p.decile is None or p.decile.noise <= BETWEEN_RUNS)
            yield replace(result, passes=calm, kept=kept, noise=_noise(p for p in passes if p not in calm))


def _noise(passes: Iterable[Pass]) -> str:
    """Why these passes have no time; "" if there are none."""
    found = ", ".join(f"{p.name} {p.decile.noise:.2f} x" for p in passes if p.decile)
    against = f"against itself the same code takes {found}, and {BETWEEN_RUNS:.2f} x is allowed"
    return f"{against}; the machine is too busy" if found else ""


@dataclass(frozen=True)
class _Timings:
    """The outcome of timing the candidates at one layout, by name."""

    times: Mapping[str, tuple[tuple[Pass, ...], int | None]]
    """The passes of correct implementations, and the bytes kept for the backward pass."""
    verdicts: Mapping[str, str]
    """The verdicts on incorrect ones."""
    limits: Mapping[str, str]
    """Why an implementation cannot run at this layout."""


@dataclass(frozen=True)
class Ready:
    """The candidates at one layout after the spot check, by name."""

    runs: Mapping[str, Run]
    """Implementations to time, warmed up."""
    footprints: Mapping[str, Footprint]
    """The memory that each run allocates."""
    verdicts: Mapping[str, str]
    """The verdict of the spot check, "" if correct."""
    limits: Mapping[str, str]
    """Why an implementation declines this layout or lacks memory."""


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
        gradients = candidate.job.declared.gradients
        run = Run(functions[candidate.name], tensors, gradients=gradients, warm=device == "cpu")
        try:
            seen[candidate.name] = footprint(run, device)
            runs[candidate.name] = run
        except torch.OutOfMemoryError as error:
            limits[candidate.name] = str(error).partition("\n")[0]
    return Ready(runs, seen, verdicts, limits)


def _time_together(
    candidates: Sequence[Implementation],
    sample: Sample,
    request: BenchRequest,
    clock: Clock,
    places: Mapping[str, Place],
) -> _Timings:
    """Time the correct candidates in alternation."""
    device = request.device
    started = ready(candidates, sample, device)
    enough = partial(_enough, earlier=request.earlier[1] if request.earlier else None, places=places)
    measured = measure(started.runs, clock, LIMITS[device], enough, Beside() if device == "cpu" else None)
    times = {}
    for name, found in measured.items():
        run, seen = started.runs[name], started.footprints[name]
        cost, host = costs(sample, gradients=run.gradients), host_times(run, device)
        passes = tuple(
            Pass(p, spread, host.get(p), cost[p], seen.peak.get(p), found.deciles[p] if device == "cpu" else None)
            for p, spread in found.spreads.items()
        )
        times[name] = passes, seen.kept
    return _Timings(times, started.verdicts, started.limits)


def _enough(found: Mapping[str, Measured], *, earlier: Record | None, places: Mapping[str, Place]) -> bool:
    """Whether the noise is small, and no row may be slower than in the previous run."""
    for name, of_run in found.items():
        for pass_name, decile in of_run.deciles.items():
            before = earlier.times.get((places[name], pass_name)) if earlier else None
            if decile.noise > _CLOSE:
                return False
            if before and outcome(before, Timed(of_run.spreads[pass_name], decile)) != "not slower":
                return False
    return True


def _function(implementation: Implementation) -> Callable[..., Any]:
    """The function of an implementation, in this process."""
    target = implementation.job.kernel
    return Location.parse(target).load() if isinstance(target, str) else target
