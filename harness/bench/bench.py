"""The bench: from a request to a stream of results. Nothing is timed that was not proven at the timed sizes first."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from packproof.harness.bench.clocks import Clock, clock_for, measure_ceilings
from packproof.harness.bench.contenders import Contender, contenders
from packproof.harness.bench.cost import Cost, costs
from packproof.harness.bench.environment import environment
from packproof.harness.bench.layouts import Layout
from packproof.harness.bench.proof import prove, spot_check
from packproof.harness.bench.results import BenchFinished, BenchStarted, Event, LayoutFinished, Pass, Proof, Result
from packproof.harness.bench.settings import Setting, setting
from packproof.harness.bench.timing import Footprint, Run, Spreads, Tensors, footprint, measure
from packproof.harness.location import Location
from packproof.harness.names import known
from packproof.harness.plan import DEVICES
from packproof.properties.sample import Sample
from packproof.refs.errors import UsageError

_SECONDS = {"cpu": 0.5, "cuda": 2.0}  # of rounds, for one op at one layout


@dataclass(frozen=True)
class BenchRequest:
    """What to time.

    layouts: one after the other. targets: none for packproof's own kernels. against: rivals, None for the usual ones.
    sizes: instead of the usual ones. inputs: optional inputs that are given, None for the usual ones.
    """

    layouts: tuple[Layout, ...]
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
    plan = [
        (op, setting(op, request.device, request.sizes, request.inputs), group)
        for op, group in contenders(request.targets, request.op, request.against, request.device)
    ]
    started = time.monotonic()
    clock = clock or clock_for(request.device)
    yield BenchStarted(environment(request.device), measure_ceilings(request.device, clock), request.seed)
    for op, chosen, group in plan:
        proofs = []
        for contender in group:
            proofs.append(prove(contender, chosen, request.dtype, request.device, request.seed))
            yield proofs[-1]
        for layout in request.layouts:
            results = _at_layout(list(zip(group, proofs, strict=True)), chosen, layout, request, clock)
            yield LayoutFinished(tuple(results), matmul=op.matmul)
    yield BenchFinished(time.monotonic() - started)


def _at_layout(
    group: Sequence[tuple[Contender, Proof]], chosen: Setting, layout: Layout, request: BenchRequest, clock: Clock
) -> Iterator[Result]:
    """The results at one layout: those that may be timed, once they are right there too, and the verdicts."""
    racers = [contender for contender, proof in group if proof.may_be_timed]
    ready: dict[str, _Ready] = {}
    verdicts = {c.name: proof.text for c, proof in group if proof.status == "failed"}
    if racers:
        sample = chosen.sample(racers[0].job.op, layout, request.dtype, request.seed)
        tensors = Tensors.of(sample, request.device)
    for contender in racers:
        found = _prepare(contender, sample, tensors, request.device)
        if isinstance(found, str):
            verdicts[contender.name] = found
        else:
            ready[contender.name] = found
    times = measure({name: r.run for name, r in ready.items()}, clock, _SECONDS[request.device]) if ready else {}
    for contender, proof in group:
        name = contender.name
        result = Result(proof.op, name, proof.setting, proof.dtype, layout)
        if name in verdicts:
            yield replace(result, verdict=verdicts[name])
        elif name in ready:
            passes = _passes(times[name], costs(sample, gradients=ready[name].run.gradients), ready[name].seen)
            yield replace(result, passes=passes, kept=ready[name].seen.kept)


@dataclass(frozen=True)
class _Ready:
    """An implementation that is right at a layout, warm, and was seen to take so much memory."""

    run: Run
    seen: Footprint


def _prepare(contender: Contender, sample: Sample, tensors: Tensors, device: str) -> _Ready | str:
    """Ready to be timed, or the verdict."""
    target = contender.job.target
    function = Location.parse(target).load() if isinstance(target, str) else target
    wrong = spot_check(contender, function, sample, device) if contender.packed else ""
    if wrong:
        return wrong
    run = Run(function, tensors, gradients=contender.job.declared.gradients)
    try:
        return _Ready(run, footprint(run, device))
    except torch.OutOfMemoryError as error:
        return str(error).partition("\n")[0]


def _passes(spreads: Spreads, cost: Mapping[str, Cost], seen: Footprint) -> tuple[Pass, ...]:
    return tuple(Pass(name, device, host, cost[name], seen.peak.get(name)) for name, (device, host) in spreads.items())
