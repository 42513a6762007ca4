"""The bench: from a request to a stream of results. Only implementations with a proof at the timed sizes are timed."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from packproof.base.environment import environment
from packproof.base.errors import UsageError
from packproof.base.names import DEVICES, require_known
from packproof.bench.kernels.clocks import Clock, clock_for, measure_ceilings
from packproof.bench.kernels.compare import RATIO_BETWEEN_RUNS, compare_times, require_device, require_rows
from packproof.bench.kernels.cost import costs
from packproof.bench.kernels.file import (
    BenchDocument,
    Configuration,
    RowTimes,
    configuration_of,
    device_text,
)
from packproof.bench.kernels.implementations import Implementation, implementations, is_baseline
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.proof import prove, spot_check
from packproof.bench.kernels.results import (
    BenchFinished,
    BenchResult,
    BenchStarted,
    Event,
    LayoutFinished,
    Pass,
    SizeProof,
)
from packproof.bench.kernels.settings import Setting, setting
from packproof.bench.kernels.timing import (
    LIMITS,
    FixedWork,
    Footprint,
    Measurement,
    Run,
    Tensors,
    host_times,
    measure,
    measure_footprint,
)
from packproof.harness.process import run_on_every_core
from packproof.harness.process.execution import InProcess
from packproof.harness.process.naming import Location
from packproof.properties.calling import Refusal
from packproof.properties.cases import Sample
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.ops import Op

_CLOSE_RATIO = 1.03  # the same code against itself: below this, more rounds hardly help

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class BenchRequest:
    """The kernels, baselines, sizes and layouts of one bench."""

    layouts: tuple[BenchLayout, ...]
    """Timed one after another."""
    targets: tuple[str, ...] = ()
    """The kernels under test; empty for packproof's own."""
    op: str | None = None
    baselines: tuple[str, ...] | None = None
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
    previous_run: tuple[str, BenchDocument] | None = None
    """The name and the content of a previous run's file. A row is timed for longer if it may be slower than there."""


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
    machine = environment(request.device)
    if request.previous_run:
        path, previous = request.previous_run
        require_device(previous, device_text(machine.name, machine.device, machine.threads), path)
        layout_configurations = [configuration_of("", "", "", request.dtype, layout) for layout in request.layouts]
        require_rows(
            previous,
            [_named_fields(p, without=("op", "implementation", "setting")) for p in layout_configurations],
            path,
        )
    plan = _plan(request)
    if request.previous_run:
        require_rows(previous, [_named_fields(p) for p in _configurations(plan, request)], path)
    empty = any(0 in layout.lengths for layout in request.layouts)
    start = time.monotonic()
    clock = clock or clock_for(request.device)
    yield BenchStarted(machine, measure_ceilings(request.device, clock), request.seed)
    proofs: list[SizeProof] = []
    for proof in _proofs(
        [(implementation, op_setting) for _, op_setting, group in plan for implementation in group], request, empty
    ):
        proofs.append(proof)
        yield proof
    proof_iterator = iter(proofs)
    for op, op_setting, group in plan:
        group_with_proofs = [(implementation, next(proof_iterator)) for implementation in group]
        for layout in request.layouts:
            yield LayoutFinished(
                tuple(_results_at_layout(group_with_proofs, op_setting, layout, request, clock)), matmul=op.matmul
            )
    yield BenchFinished(time.monotonic() - start)


def _require_names(request: BenchRequest) -> None:
    """UsageError for a device, number of threads or layout without anything to time."""
    require_known("device", request.device, DEVICES)
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
    for op, group in implementations(request.targets, request.op, request.baselines, request.device):
        op_setting = setting(op, request.device, request.sizes, request.inputs, request.options)
        plan.append((op, op_setting.without_arguments(_unsupported_defaults(op_setting, group, request)), group))
    return plan


def _unsupported_defaults(op_setting: Setting, group: Sequence[Implementation], request: BenchRequest) -> set[str]:
    """Default inputs and options that a kernel under test does not take, unless the request names them.

    No kernel of the group gets them, so that their times can be compared.
    """
    requested_names = {*(request.inputs or ()), *request.options}
    kernels_under_test = [implementation for implementation in group if not is_baseline(implementation.name)]
    return {
        name for implementation in kernels_under_test for name in implementation.unsupported_arguments(op_setting)
    } - requested_names


def _named_fields(configuration: Configuration, without: Sequence[str] = ()) -> dict[str, object]:
    """The fields of a configuration, by name."""
    return {name: value for name, value in asdict(configuration).items() if name not in without}


def _configurations(plan: Plan, request: BenchRequest) -> list[Configuration]:
    """The configurations at which this run may have rows."""
    return [
        configuration_of(op.name, implementation.name, str(op_setting), request.dtype, layout)
        for op, op_setting, group in plan
        for implementation in group
        for layout in request.layouts
    ]


def _proofs(pairs: Sequence[tuple[Implementation, Setting]], request: BenchRequest, empty: bool) -> Iterator[SizeProof]:
    """The proof of each implementation, in order. Proofs run in parallel, because nothing is timed meanwhile."""

    def proof(number: int) -> Iterator[tuple[int, SizeProof]]:
        implementation, op_setting = pairs[number]
        yield number, prove(implementation, op_setting, request.dtype, request.device, request.seed, empty=empty)

    proof_by_number: dict[int, SizeProof] = {}
    next_number = 0
    units = [partial(proof, n) for n in range(len(pairs))]
    for number, size_proof in run_on_every_core(units, request.device, record_type=tuple[int, SizeProof]):
        proof_by_number[number] = size_proof
        while next_number in proof_by_number:
            yield proof_by_number[next_number]
            next_number += 1


def _results_at_layout(
    group: Sequence[tuple[Implementation, SizeProof]],
    op_setting: Setting,
    layout: BenchLayout,
    request: BenchRequest,
    clock: Clock,
) -> Iterator[BenchResult]:
    """The results at one layout: times of implementations that are correct there too, and the verdicts."""
    candidates = [implementation for implementation, proof in group if proof.may_be_timed]
    timings, channels = _Timings({}, {}, {}), 1
    if candidates:
        sample = op_setting.sample(candidates[0].job.op, layout, request.dtype, request.seed)
        channels = next(iter(sample.inputs.values()))[0].numel()
        configurations = {
            p.implementation: configuration_of(p.op, p.implementation, p.setting, p.dtype, layout) for _, p in group
        }
        timings = _time_together(candidates, sample, request, clock, configurations)
    for implementation, proof in group:
        result = BenchResult(proof.op, implementation.name, proof.setting, proof.dtype, layout, channels=channels)
        verdict = proof.text if proof.status == "failed" else timings.verdicts.get(implementation.name, "")
        if verdict:
            yield replace(result, verdict=verdict)
        elif implementation.name in timings.limits:
            yield replace(result, limit=timings.limits[implementation.name])
        elif implementation.name in timings.times:
            passes, kept_bytes = timings.times[implementation.name]
            quiet_passes = tuple(p for p in passes if p.decile is None or p.decile.noise <= RATIO_BETWEEN_RUNS)
            yield replace(
                result,
                passes=quiet_passes,
                kept_bytes=kept_bytes,
                noise=_noise_text(p for p in passes if p not in quiet_passes),
            )


def _noise_text(passes: Iterable[Pass]) -> str:
    """Why these passes have no time; "" if there are none."""
    noisy_passes = ", ".join(f"{p.name} {p.decile.noise:.2f} x" for p in passes if p.decile)
    explanation = f"against itself the same code takes {noisy_passes}, and {RATIO_BETWEEN_RUNS:.2f} x is allowed"
    return f"{explanation}; the machine is too busy" if noisy_passes else ""


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
class PreparedRuns:
    """The candidates at one layout after the spot check, by name."""

    runs: Mapping[str, Run]
    """Implementations to time, warmed up."""
    footprints: Mapping[str, Footprint]
    """The memory that each run allocates."""
    verdicts: Mapping[str, str]
    """The verdict of the spot check, "" if correct."""
    limits: Mapping[str, str]
    """Why an implementation declines this layout or lacks memory."""


def prepare_runs(candidates: Sequence[Implementation], sample: Sample, device: str) -> PreparedRuns:
    """Check every candidate at this layout, and prepare the correct ones for timing."""
    functions = {c.name: _function(c) for c in candidates}
    verdicts: dict[str, str] = {}
    limits: dict[str, str] = {}
    for candidate in candidates:
        try:
            verdicts[candidate.name] = (
                spot_check(_subject(candidate, functions[candidate.name], device), sample)
                if candidate.is_packed
                else ""
            )
        except Refusal as refusal:  # too little memory, or an unsupported layout
            limits[candidate.name] = str(refusal)
    runs: dict[str, Run] = {}
    footprints: dict[str, Footprint] = {}
    tensors = Tensors.from_sample(sample, device)  # not earlier: the checks need the memory
    for candidate in candidates:
        if verdicts.get(candidate.name) or candidate.name in limits:
            continue
        gradients = candidate.job.declared.gradients
        run = Run(functions[candidate.name], tensors, gradients=gradients, warm=device == "cpu")
        try:
            footprints[candidate.name] = measure_footprint(run, device)
            runs[candidate.name] = run
        except torch.OutOfMemoryError as error:
            limits[candidate.name] = str(error).partition("\n")[0]
    return PreparedRuns(runs, footprints, verdicts, limits)


def _subject(candidate: Implementation, function: Callable[..., Any], device: str) -> KernelUnderTest:
    job = candidate.job
    return KernelUnderTest(job.op, InProcess(function, device), job.declared.promises, gradients=job.declared.gradients)


def _time_together(
    candidates: Sequence[Implementation],
    sample: Sample,
    request: BenchRequest,
    clock: Clock,
    configurations: Mapping[str, Configuration],
) -> _Timings:
    """Time the correct candidates in alternation."""
    device = request.device
    prepared_runs = prepare_runs(candidates, sample, device)
    is_enough = partial(
        _is_enough,
        previous=request.previous_run[1] if request.previous_run else None,
        configurations=configurations,
    )
    measurements = measure(
        prepared_runs.runs, clock, LIMITS[device], is_enough, FixedWork() if device == "cpu" else None
    )
    times = {}
    for name, measurement in measurements.items():
        run, run_footprint = prepared_runs.runs[name], prepared_runs.footprints[name]
        cost, host = costs(sample, gradients=run.gradients), host_times(run, device)
        passes = tuple(
            Pass(
                p,
                spread,
                host.get(p),
                cost[p],
                run_footprint.peak.get(p),
                measurement.deciles[p] if device == "cpu" else None,
            )
            for p, spread in measurement.spreads.items()
        )
        times[name] = passes, run_footprint.kept_bytes
    return _Timings(times, prepared_runs.verdicts, prepared_runs.limits)


def _is_enough(
    measurements: Mapping[str, Measurement],
    *,
    previous: BenchDocument | None,
    configurations: Mapping[str, Configuration],
) -> bool:
    """Whether the noise is small, and no row may be slower than in the previous run."""
    for name, measurement in measurements.items():
        for pass_name, decile in measurement.deciles.items():
            previous_times = previous.times.get((configurations[name], pass_name)) if previous else None
            if decile.noise > _CLOSE_RATIO:
                return False
            if (
                previous_times
                and compare_times(previous_times, RowTimes(measurement.spreads[pass_name], decile)) != "not slower"
            ):
                return False
    return True


def _function(implementation: Implementation) -> Callable[..., Any]:
    """The function of an implementation, in this process."""
    target = implementation.job.kernel
    return Location.parse(target).load() if isinstance(target, str) else target
