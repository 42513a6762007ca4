"""The bench: from a request to a stream of results. Only what was first proven at the timed sizes is timed."""

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

_CLOSE = 1.03  # the same code against itself: below this more rounds tell little more

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class BenchRequest:
    """What to time.

    layouts: timed one after another. targets: empty for packproof's own kernels. against: baselines, None for the
    default ones. sizes: override the defaults. inputs: optional inputs to pass, None for the default ones. options:
    values of the op's options, in text. threads: of torch on a CPU, one by default. earlier: the name of an earlier
    run's file and what it holds; a row that may be slower than there is timed for longer.
    """

    layouts: tuple[BenchLayout, ...]
    targets: tuple[str, ...] = ()
    op: str | None = None
    against: tuple[str, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    earlier: tuple[str, Record] | None = None


Plan = list[tuple[Op, Setting, list[Implementation]]]


def run_bench(request: BenchRequest, clock: Clock | None = None) -> Iterator[Event]:
    """Prove and time what is requested; UsageError before the first event if that is impossible."""
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
    """UsageError for a device, number of threads or layout with which nothing can be timed."""
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
    """By op, how it is timed, and the implementations, each opened in a process of its own."""
    plan = []
    for op, group in implementations(request.targets, request.op, request.against, request.device):
        chosen = setting(op, request.device, request.sizes, request.inputs, request.options)
        plan.append((op, chosen.without(_not_taken(chosen, group, request)), group))
    return plan


def _not_taken(chosen: Setting, group: Sequence[Implementation], request: BenchRequest) -> set[str]:
    """What is usual for the op, was not asked for, and is not taken by a kernel under test. No kernel of the group gets
    it, so that their times can be compared."""
    asked = {*(request.inputs or ()), *request.options}
    tested = [implementation for implementation in group if not is_baseline(implementation.name)]
    return {name for implementation in tested for name in implementation.missing(chosen)} - asked


def _named(found: Place, without: Sequence[str] = ()) -> dict[str, object]:
    """What a row is found by, by name."""
    return {name: value for name, value in zip(PLACE, found, strict=True) if name not in without}


def _places(plan: Plan, request: BenchRequest) -> list[Place]:
    """Where this run may have rows."""
    return [
        place(op.name, implementation.name, str(chosen), request.dtype, layout)
        for op, chosen, group in plan
        for implementation in group
        for layout in request.layouts
    ]


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
    """What is said of passes that have no time because of noise, "" if there is none."""
    found = ", ".join(f"{p.name} {p.decile.noise:.2f} x" for p in passes if p.decile)
    against = f"against itself the same code takes {found}, and {BETWEEN_RUNS:.2f} x is allowed"
    return f"{against}; the machine is too busy" if found else ""


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
    """Whether the same code against itself agrees, and no row may be slower than in the earlier run."""
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
