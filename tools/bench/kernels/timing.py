"""Rounds of timed runs: every implementation once a round, each round in another order; quartiles, first deciles."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.binding import Binding
from packproof.bench.kernels.clocks import Clock
from packproof.bench.kernels.results import Decile, PassName, Spread
from packproof.properties.cases import Sample

Outputs = tuple[Tensor, ...]

_HOST_CALLS = 20  # more could fill the queue of a GPU, and then calls block


@dataclass(frozen=True)
class Tensors:
    """Arguments of a call, on the device, shared by all implementations."""

    inputs: Mapping[str, Tensor]
    wrt: tuple[str, ...]
    """The inputs to differentiate."""
    metadata: Mapping[str, Any]
    """Offsets and options."""
    cotangents: tuple[Tensor, ...]
    """In the order of the outputs."""

    @classmethod
    def from_sample(cls, sample: Sample, device: str) -> "Tensors":
        inputs = {name: x.to(device) for name, x in sample.inputs.items()}
        cotangents = tuple(sample.cotangents[name].to(device) for name in sample.outputs)
        metadata = {name: offsets.to(device) for name, offsets in sample.metadata.items()}
        return cls(inputs, sample.wrt, {**metadata, **sample.options}, cotangents)


class Run:
    """An implementation with its tensors, ready to be called repeatedly.

    The forward pass is a training pass: it records everything for the backward pass.

    warm: call once, untimed, before each timed round on a CPU: other runs have left their own data in the caches.
    """

    def __init__(self, function: Callable[..., Any], tensors: Tensors, *, gradients: bool, warm: bool = False) -> None:
        self.gradients = gradients
        self._warm = warm
        self._function = function
        inputs = {name: x.detach() for name, x in tensors.inputs.items()}  # leaves of its own on shared memory
        self._wrt = [inputs[name].requires_grad_() for name in tensors.wrt] if gradients else []
        rows = len(next(iter(inputs.values())))
        arguments = {**inputs, **tensors.metadata}
        self._by_position, self._by_name = Binding.from_function(function).kernel_arguments(arguments, lambda: rows)
        self._cotangents = tensors.cotangents

    def forward(self) -> Outputs:
        return_value = self._function(*self._by_position, **self._by_name)
        return return_value if isinstance(return_value, tuple) else (return_value,)

    def backward(self, outputs: Outputs) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(outputs, self._wrt, self._cotangents, allow_unused=True)

    def passes(self, clock: Clock) -> Iterator[tuple[PassName, float]]:
        """Milliseconds of each pass, run once. "both" is a separate run, not a sum."""
        if self._warm:
            outputs = self.forward()
            if self.gradients:
                self.backward(outputs)
        outputs, elapsed = clock.time(self.forward)
        yield "forward", elapsed
        if self.gradients:
            yield "backward", clock.time(lambda: self.backward(outputs))[1]
            del outputs
            yield "both", clock.time(lambda: self.backward(self.forward()))[1]


@dataclass(frozen=True)
class Footprint:
    """Bytes on a GPU beyond the inputs."""

    peak: Mapping[PassName, int]
    """The peak by pass."""
    kept_bytes: int | None
    """Kept by the forward pass for the backward pass, without outputs."""


def measure_footprint(run: Run, device: str, gpu: Any = torch.cuda) -> Footprint:
    """Run once and measure the allocations; unknown on a CPU.

    gpu: the functions of torch.cuda.

    It warms up first, so one-time allocations, such as compiled code and metadata, do not count.
    """
    if device != "cuda":
        for _ in run.passes(_Untimed()):
            pass
        return Footprint({}, None)
    run.forward()
    base_bytes = _reset_peak_memory(gpu)
    outputs = run.forward()
    forward = gpu.max_memory_allocated() - base_bytes
    held_bytes = _reset_peak_memory(gpu) - base_bytes
    kept_bytes = held_bytes - sum(y.numel() * y.element_size() for y in outputs)
    if not run.gradients:
        return Footprint({"forward": forward}, None)
    gradients = run.backward(outputs)
    backward = gpu.max_memory_allocated() - base_bytes - held_bytes
    del outputs, gradients
    return Footprint(
        {"forward": forward, "backward": backward, "both": max(forward, held_bytes + backward)}, kept_bytes
    )


def _reset_peak_memory(gpu: Any) -> int:
    """The bytes allocated now; resets the peak."""
    gpu.synchronize()
    gpu.reset_peak_memory_stats()
    return int(gpu.memory_allocated())


class _Untimed:
    def time(self, work: Callable[[], Any]) -> tuple[Any, float]:
        return work(), 0.0


Spreads = Mapping[PassName, Spread]
Deciles = Mapping[PassName, Decile]


@dataclass(frozen=True)
class RoundLimits:
    """How long to measure."""

    seconds: float
    """Seconds of rounds before the first decision."""
    max_rounds: int
    """The most rounds in these seconds."""
    max_seconds: float
    """Seconds after which measuring ends in any case."""
    repeat_ms: float = 0.0
    """Milliseconds to repeat a short run for in each round: the first calls after a long run are slower."""


# On a CPU rounds are short, as no cold cache is restored, and the limit is long, to outwait other work.
LIMITS = {"cpu": RoundLimits(0.5, 10_000, 10.0, repeat_ms=5.0), "cuda": RoundLimits(2.0, 60, 2.0)}
_FEWEST_ROUNDS = 6
_MOST_REPEATS = 20


@dataclass(frozen=True)
class Measurement:
    """The times of one run."""

    spreads: Spreads
    """By pass, quartiles of all calls."""
    deciles: Deciles
    """By pass, the first decile of the shortest call in each round."""


class FixedWork:
    """Fixed work in the same rounds on a CPU, as a measure of the machine's speed meanwhile.

    Small operations measure Python and torch's dispatcher, products and exponentials the arithmetic units, and
    operations on 64 KiB the caches. The caches suffer first from other work.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        small_matrix, square_matrix, large_matrix = (torch.rand(n, n, generator=generator) for n in (8, 128, 128))
        self._work: Mapping[str, Callable[[], object]] = {
            "small operations": lambda: [small_matrix * 0.5 + small_matrix for _ in range(100)],
            "products": lambda: [(square_matrix @ square_matrix).exp_() for _ in range(4)],
            "elements": lambda: [large_matrix * 0.5 + large_matrix for _ in range(16)],
        }

    def passes(self, clock: Clock) -> Iterator[tuple[str, float]]:
        for name, work in self._work.items():
            work()
            yield name, clock.time(work)[1]


def measure(
    runs: Mapping[str, Run],
    clock: Clock,
    limits: RoundLimits,
    is_enough: Callable[[Mapping[str, Measurement]], bool],
    fixed_work: FixedWork | None = None,
) -> dict[str, Measurement]:
    """The times of every pass of every run, all of them once a round, in an even number of rounds.

    After the seconds of the limits it asks whether that is enough, and otherwise goes on until the limit.
    """
    if not runs:
        return {}
    names, times_by_run, fixed_work_times, round_count = (
        list(runs),
        {name: _RoundTimes() for name in runs},
        _RoundTimes(),
        0,
    )
    start = time.monotonic()
    next_decision = limits.seconds
    while True:
        start_index = round_count % len(names)
        for name in (*names[start_index:], *names[:start_index]):
            _time_round(runs[name].passes, clock, times_by_run[name], limits.repeat_ms)
        if fixed_work:
            _time_round(fixed_work.passes, clock, fixed_work_times, limits.repeat_ms)
        round_count += 1
        spent = time.monotonic() - start
        if (
            round_count % 2
            or round_count < _FEWEST_ROUNDS
            or (round_count < limits.max_rounds and spent < next_decision)
        ):
            continue
        measurements = {
            name: Measurement(run_times.spreads(), run_times.deciles(fixed_work_times))
            for name, run_times in times_by_run.items()
        }
        if spent >= limits.max_seconds or is_enough(measurements):
            return measurements
        next_decision = 1.2 * spent


def _time_round(
    passes: Callable[[Clock], Iterator[tuple[str, float]]], clock: Clock, times: "_RoundTimes", repeat_ms: float
) -> None:
    """One round of a run: one call, or as many as fit into `repeat_ms`."""
    spent = times.add(passes(clock))
    for _ in range(min(int(repeat_ms / spent), _MOST_REPEATS)):
        times.add(passes(clock), same_round=True)


class _RoundTimes:
    """The times of one run so far, by pass: all of them, and the shortest of each round."""

    def __init__(self) -> None:
        self._times: dict[Any, list[float]] = {}
        self._shortest: dict[Any, list[float]] = {}

    def add(self, passes: Iterable[tuple[str, float]], *, same_round: bool = False) -> float:
        """Add calls, and return their milliseconds in total.

        same_round: whether they belong to the round of the previous calls.
        """
        total = 0.0
        for name, elapsed in passes:
            total += elapsed
            self._times.setdefault(name, []).append(elapsed)
            shortest = self._shortest.setdefault(name, [])
            if same_round:
                shortest[-1] = min(shortest[-1], elapsed)
            else:
                shortest.append(elapsed)
        return total

    def spreads(self) -> Spreads:
        return {name: spread(times) for name, times in self._times.items()}

    def deciles(self, fixed_work: "_RoundTimes") -> Deciles:
        """The first deciles, with those of the fixed work; noise of the machine counts for every pass."""
        fixed_work_deciles = {name: _decile(times) for name, times in fixed_work._shortest.items()}
        machine = max(map(_noise, fixed_work._shortest.values()), default=1.0)
        return {
            name: Decile(_decile(x), max(_noise(x), machine), fixed_work_deciles) for name, x in self._shortest.items()
        }


def _decile(times: list[float]) -> float:
    return quantiles(times, n=10, method="inclusive")[0]


def _noise(times: list[float]) -> float:
    """The same code against itself: the first decile of the even rounds over that of the odd ones, or the inverse."""
    even_decile, odd_decile = _decile(times[::2]), _decile(times[1::2])
    return max(even_decile, odd_decile) / min(even_decile, odd_decile)


def host_times(
    run: Run, device: str, gpu: Any = torch.cuda, clock: Callable[[], int] = time.perf_counter_ns
) -> Spreads:
    """Host time to enqueue each pass on a GPU, in consecutive calls as in training: warm, without a wait in between.

    If a kernel itself waits for the GPU, that is included. Empty on a CPU, where the host does the work.

    gpu: the functions of torch.cuda.
    clock: nanoseconds now.
    """
    if device != "cuda":
        return {}
    times = _RoundTimes()
    gpu.synchronize()
    for _ in range(_HOST_CALLS):
        times.add(_enqueue_times(run, clock))
    gpu.synchronize()
    return times.spreads()


def _enqueue_times(run: Run, clock: Callable[[], int]) -> Iterator[tuple[PassName, float]]:
    start = clock()
    outputs = run.forward()
    middle = end = clock()
    if run.gradients:
        run.backward(outputs)
        end = clock()
    yield "forward", (middle - start) / 1e6
    if run.gradients:
        yield "backward", (end - middle) / 1e6
        yield "both", (end - start) / 1e6


def spread(times: list[float]) -> Spread:
    """Quartiles of at least two times."""
    low, median, high = quantiles(times, n=4, method="inclusive")
    return Spread(low, median, high, len(times))
