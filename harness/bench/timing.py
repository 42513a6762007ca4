"""Rounds of timed runs: every implementation once a round, each round in another order; quartiles, first deciles."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.binding import Binding
from packproof.harness.bench.clocks import Clock
from packproof.harness.bench.results import Decile, PassName, Spread
from packproof.properties.cases.sample import Sample

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
    def of(cls, sample: Sample, device: str) -> "Tensors":
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
        self._arguments = Binding.of(function).arguments({**inputs, **tensors.metadata}, lambda: rows)
        self._cotangents = tensors.cotangents

    def forward(self) -> Outputs:
        returned = self._function(**self._arguments)
        return returned if isinstance(returned, tuple) else (returned,)

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
    kept: int | None
    """Kept by the forward pass for the backward pass, without outputs."""


def footprint(run: Run, device: str) -> Footprint:
    """Run once and measure the allocations; unknown on a CPU.

    It warms up first, so one-time allocations, such as compiled code and metadata, do not count.
    """
    if device != "cuda":
        for _ in run.passes(_Untimed()):
            pass
        return Footprint({}, None)
    run.forward()
    base = _settled()
    outputs = run.forward()
    forward = torch.cuda.max_memory_allocated() - base
    held = _settled() - base
    kept = held - sum(y.numel() * y.element_size() for y in outputs)
    if not run.gradients:
        return Footprint({"forward": forward}, None)
    gradients = run.backward(outputs)
    backward = torch.cuda.max_memory_allocated() - base - held
    del outputs, gradients
    return Footprint({"forward": forward, "backward": backward, "both": max(forward, held + backward)}, kept)


def _settled() -> int:
    """The bytes allocated now; resets the peak."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


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
    most: int
    """The most rounds in these seconds."""
    limit: float
    """Seconds after which measuring ends in any case."""
    turn: float = 0.0
    """Milliseconds to repeat a short run for in each round: the first calls after a long run are slower."""


# On a CPU rounds are short, as no cold cache is restored, and the limit is long, to outwait other work.
LIMITS = {"cpu": RoundLimits(0.5, 10_000, 10.0, turn=5.0), "cuda": RoundLimits(2.0, 60, 2.0)}
_FEWEST_ROUNDS = 6
_MOST_REPEATS = 20


@dataclass(frozen=True)
class Measured:
    """The times of one run."""

    spreads: Spreads
    """By pass, quartiles of all calls."""
    deciles: Deciles
    """By pass, the first decile of the shortest call in each round."""


class Beside:
    """Fixed work in the same rounds on a CPU, as a measure of the machine's speed meanwhile.

    Small operations measure Python and torch's dispatcher, products and exponentials the arithmetic units, and
    operations on 64 KiB the caches. The caches suffer first from other work.
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        small, square, large = (torch.rand(n, n, generator=generator) for n in (8, 128, 128))
        self._work: Mapping[str, Callable[[], object]] = {
            "small operations": lambda: [small * 0.5 + small for _ in range(100)],
            "products": lambda: [(square @ square).exp_() for _ in range(4)],
            "elements": lambda: [large * 0.5 + large for _ in range(16)],
        }

    def passes(self, clock: Clock) -> Iterator[tuple[str, float]]:
        for name, work in self._work.items():
            work()
            yield name, clock.time(work)[1]


def measure(
    runs: Mapping[str, Run],
    clock: Clock,
    limits: RoundLimits,
    enough: Callable[[Mapping[str, Measured]], bool],
    beside: Beside | None = None,
) -> dict[str, Measured]:
    """The times of every pass of every run, all of them once a round, in an even number of rounds.

    After the seconds of the limits it asks whether that is enough, and otherwise goes on until the limit.
    """
    if not runs:
        return {}
    names, taken, fixed, done = list(runs), {name: _Taken() for name in runs}, _Taken(), 0
    start = time.monotonic()
    asked = limits.seconds
    while True:
        first = done % len(names)
        for name in (*names[first:], *names[:first]):
            _take_turn(runs[name].passes, clock, taken[name], limits.turn)
        if beside:
            _take_turn(beside.passes, clock, fixed, limits.turn)
        done += 1
        spent = time.monotonic() - start
        if done % 2 or done < _FEWEST_ROUNDS or (done < limits.most and spent < asked):
            continue
        found = {name: Measured(of_run.spreads(), of_run.deciles(fixed)) for name, of_run in taken.items()}
        if spent >= limits.limit or enough(found):
            return found
        asked = 1.2 * spent


def _take_turn(
    passes: Callable[[Clock], Iterator[tuple[str, float]]], clock: Clock, taken: "_Taken", turn: float
) -> None:
    """One round of a run: one call, or as many as fit into `repeat_ms`."""
    spent = taken.add(passes(clock))
    for _ in range(min(int(turn / spent), _MOST_REPEATS)):
        taken.add(passes(clock), again=True)


class _Taken:
    """The times of one run so far, by pass: all of them, and the shortest of each round."""

    def __init__(self) -> None:
        self._times: dict[Any, list[float]] = {}
        self._shortest: dict[Any, list[float]] = {}

    def add(self, passes: Iterable[tuple[str, float]], *, again: bool = False) -> float:
        """Add calls, and return their milliseconds in total.

        same_round: whether they belong to the round of the previous calls.
        """
        total = 0.0
        for name, elapsed in passes:
            total += elapsed
            self._times.setdefault(name, []).append(elapsed)
            shortest = self._shortest.setdefault(name, [])
            if again:
                shortest[-1] = min(shortest[-1], elapsed)
            else:
                shortest.append(elapsed)
        return total

    def spreads(self) -> Spreads:
        return {name: spread(times) for name, times in self._times.items()}

    def deciles(self, beside: "_Taken") -> Deciles:
        """The first deciles, with those of the fixed work; noise of the machine counts for every pass."""
        around = {name: _decile(times) for name, times in beside._shortest.items()}
        machine = max(map(_noise, beside._shortest.values()), default=1.0)
        return {name: Decile(_decile(x), max(_noise(x), machine), around) for name, x in self._shortest.items()}


def _decile(times: list[float]) -> float:
    return quantiles(times, n=10, method="inclusive")[0]


def _noise(times: list[float]) -> float:
    """The same code against itself: the first decile of the even rounds over that of the odd ones, or the inverse."""
    one, other = _decile(times[::2]), _decile(times[1::2])
    return max(one, other) / min(one, other)


def host_times(run: Run, device: str) -> Spreads:
    """Host time to enqueue each pass on a GPU, in consecutive calls as in training: warm, without a wait in between.

    If a kernel itself waits for the GPU, that is included. Empty on a CPU, where the host does the work.
    """
    if device != "cuda":
        return {}
    taken = _Taken()
    torch.cuda.synchronize()
    for _ in range(_HOST_CALLS):
        taken.add(_enqueued(run))
    torch.cuda.synchronize()
    return taken.spreads()


def _enqueued(run: Run) -> Iterator[tuple[PassName, float]]:
    start = time.perf_counter_ns()
    outputs = run.forward()
    middle = end = time.perf_counter_ns()
    if run.gradients:
        run.backward(outputs)
        end = time.perf_counter_ns()
    yield "forward", (middle - start) / 1e6
    if run.gradients:
        yield "backward", (end - middle) / 1e6
        yield "both", (end - start) / 1e6


def spread(times: list[float]) -> Spread:
    """Quartiles of at least two times."""
    low, median, high = quantiles(times, n=4, method="inclusive")
    return Spread(low, median, high, len(times))
