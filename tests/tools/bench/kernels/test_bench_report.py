"""What a bench prints at 100 columns, and how its rounds are ordered, on handmade times."""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

import pytest
import torch
from rich.console import Console

from packproof.base.errors import UsageError
from packproof.bench.kernels.clocks import DeviceClock
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.report import BenchReport
from packproof.bench.kernels.results import BenchStarted, LayoutFinished, PassName, SizeProof
from packproof.bench.kernels.sweep import Growth, Plot
from packproof.bench.kernels.timing import Measurement, RoundLimits, host_times, measure, measure_footprint, spread
from tests.tools.bench.bench_results import CEILINGS, HERE, result

T = TypeVar("T")

TABLE = """\
Some GPU · torch 2.11.0, triton 3.6.0, driver 580.1
ceilings: copy 4e+03 GB/s, bf16 matmul 700 TFLOP/s · seed 0

rope · bf16 · h=32 k=128 r=64
  packproof              proven gpu       4 examples/s
  fla_rope               not installed

rope · L2: 3 sequences, 64 tokens, longest 34 · bf16
                         pass           ms       quartiles          rate    of  host µs  peak      x
  packproof              forward      0.25  0.2487..0.2512    4e+03 GB/s  100%       30     1   1.00
  flash_attn_rope        forward       0.5  0.4975..0.5025    2e+03 GB/s   50%       30     1   2.00
  leaky                  FAILED packing (y): lengths [1, 1]; no time
  packproof: 2 MiB kept for backward, 8 bytes per token and channel
  flash_attn_rope: 2 MiB kept for backward, 8 bytes per token and channel
"""


def printed(*events: object) -> str:
    text = io.StringIO()
    report = BenchReport(Console(file=text, width=100, highlight=False, markup=False, emoji=False))
    for event in events:
        report(event)  # type: ignore[arg-type]
    return text.getvalue()


def test_the_table_shows_time_rate_share_and_ratio() -> None:
    mine = result()
    leaky = replace(result("leaky"), passes=(), kept_bytes=None, verdict="packing (y): lengths [1, 1]\nsequence 1")
    proof = SizeProof("rope", "packproof", mine.setting, mine.dtype, "passed", "", "gpu", 2, 0.5)
    absent = replace(proof, implementation="fla_rope", status="not installed", text="not installed", examples=0)
    table = LayoutFinished((mine, result("flash_attn_rope", 0.5), leaky))
    assert printed(BenchStarted(HERE, CEILINGS, 0), proof, absent, table) == TABLE


def test_products_of_matrices_are_rated_in_operations() -> None:
    text = printed(BenchStarted(HERE, CEILINGS, 0), LayoutFinished((result(ms=1e-1),), matmul=True))
    assert "100 TFLOP/s   14%" in text


def test_growth_is_relative_to_the_first_layout() -> None:
    growth = Growth("sequences")
    for n, ms in ((16, 0.25), (2401, 0.5)):
        growth(LayoutFinished((result(ms=ms, layout=BenchLayout(f"{n} sequences", (1,) * n)),)))
    head, row = growth.text.splitlines()[-2:]
    assert head.split() == ["pass", "16", "2401"]
    assert row.split() == ["packproof", "forward", "1.00", "2.00"]


def test_a_sweep_over_tokens_shows_the_time_per_token() -> None:
    growth = Growth("tokens")
    for n, ms in ((4096, 0.02), (65_536, 0.262144), (1_048_576, 4.194304)):
        growth(LayoutFinished((result(ms=ms, layout=BenchLayout(f"{n} tokens", (n,))),)))
    title, _, row = growth.text.splitlines()[-3:]
    assert title == "rope · nanoseconds per token"
    assert row.split() == ["packproof", "forward", "4.883", "4", "4"]


def test_a_plot_without_matplotlib_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packproof.bench.kernels.sweep.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install packproof\[bench\]"):
        Plot("sweep.png")
    with pytest.raises(UsageError, match=r"has to end in \.png or \.svg"):
        Plot("sweep.jpg")


class Script:
    """A run that records the order of calls and takes 1, 2, 3 ... milliseconds."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order, self.count = name, order, 0

    def passes(self, _clock: object) -> Iterator[tuple[PassName, float]]:
        self.order.append(self.name)
        self.count += 1
        yield "forward", float(self.count)


def test_every_round_has_another_order() -> None:
    order: list[str] = []
    runs = {name: Script(name, order) for name in "abc"}
    found = measure(runs, Untimed(), RoundLimits(0.0, 6, 0.0), lambda _found: True)  # type: ignore[arg-type]
    assert "".join(order) == "abcbcacababcbcacab"
    taken = found["b"].spreads["forward"]
    assert (taken.low, taken.median, taken.high, taken.rounds) == (2.25, 3.5, 4.75, 6)


def test_rounds_go_on_until_they_are_enough_or_time_is_up() -> None:
    """The same code against itself: the even rounds of the script take 1, 3, 5 ... and the odd ones 2, 4, 6 ... ms."""
    asked: list[float] = []

    def third_time(found: Mapping[str, Measurement]) -> bool:
        asked.append(found["a"].deciles["forward"].noise)
        return len(asked) == 3

    found = measure({"a": Script("a", [])}, Untimed(), RoundLimits(0.0, 6, 10.0), third_time)  # type: ignore[dict-item]
    assert asked == pytest.approx([2.4 / 1.4, 2.6 / 1.6, 2.8 / 1.8])
    assert found["a"].deciles["forward"].ms == pytest.approx(1.9)
    assert found["a"].spreads["forward"].rounds == 10
    measure({"a": Script("a", [])}, Untimed(), RoundLimits(0.0, 6, 0.0), lambda _found: False)  # type: ignore[dict-item]


def test_a_short_run_is_repeated_in_each_round() -> None:
    """Noise is still found between rounds: the shortest time of each counts once."""
    runs = {"short": Script("short", []), "long": Long()}
    found = measure(runs, Untimed(), RoundLimits(0.0, 6, 0.0, repeat_ms=4.0), lambda _found: True)  # type: ignore[arg-type]
    assert found["long"].spreads["forward"].rounds == 6
    assert found["short"].spreads["forward"].rounds == 6 + 4  # the first round took 1 ms: four more
    shortest = found["short"].deciles["forward"]  # of 1, 6, 7, 8, 9, 10
    assert (shortest.ms, shortest.noise) == pytest.approx((3.5, 6.4 / 2.2))


class Long:
    def passes(self, _clock: object) -> Iterator[tuple[PassName, float]]:
        yield "forward", 8.0


class Untimed:
    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        return work(), 0.0


def test_the_spread_is_that_of_the_quartiles() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 100.0]).relative == pytest.approx(2 / 3)


class Gpu:
    """The functions of torch.cuda: it records the calls and returns these figures."""

    def __init__(self, **answers: list[int]) -> None:
        self.did: list[str] = []
        for name in ("synchronize", "reset_peak_memory_stats", "_sleep", *answers):
            setattr(self, name, self._noting(name, answers.get(name)))

    def _noting(self, name: str, answers: list[int] | None) -> Callable[..., int | None]:
        def call(*_arguments: object) -> int | None:
            self.did.append(name)
            return answers.pop(0) if answers else None

        return call

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _device: int) -> SimpleNamespace:
        return SimpleNamespace(L2_cache_size=100 << 20)


class Trained:
    """A run whose forward pass returns one float32 of output, 4 bytes."""

    gradients = True

    def __init__(self, gpu: "Gpu") -> None:
        self._gpu = gpu

    def forward(self) -> tuple[torch.Tensor, ...]:
        self._gpu.did.append("forward")
        return (torch.zeros(1),)

    def backward(self, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return outputs


def test_memory_is_what_a_pass_allocates_beyond_what_was_there() -> None:
    gpu = Gpu(memory_allocated=[100, 150], max_memory_allocated=[180, 400])
    seen = measure_footprint(Trained(gpu), "cuda", gpu)  # type: ignore[arg-type]
    assert gpu.did[0] == "forward"  # not counted: one-time allocations
    assert seen.kept_bytes == 150 - 100 - 4
    assert seen.peak == {"forward": 80, "backward": 250, "both": 300}


class Called:
    """A run that records its calls and advances the host clock."""

    def __init__(self, gpu: Gpu, clock: list[int], *, gradients: bool = True) -> None:
        self._gpu, self._clock, self.gradients = gpu, clock, gradients

    def forward(self) -> tuple[torch.Tensor, ...]:
        self._gpu.did.append("forward")
        self._clock[0] += 30_000
        return ()

    def backward(self, _outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._gpu.did.append("backward")
        self._clock[0] += 50_000
        return ()


def test_host_time_is_that_of_calls_in_a_row() -> None:
    gpu, clock = Gpu(), [0]
    on_gpu = partial(host_times, device="cuda", gpu=gpu, clock=lambda: clock[0])
    found = on_gpu(Called(gpu, clock))  # type: ignore[arg-type]
    assert gpu.did == ["synchronize", *["forward", "backward"] * 20, "synchronize"]
    assert {name: taken.median for name, taken in found.items()} == {"forward": 0.03, "backward": 0.05, "both": 0.08}
    assert list(on_gpu(Called(gpu, clock, gradients=False))) == ["forward"]  # type: ignore[arg-type]
    assert host_times(Called(gpu, clock), "cpu") == {}  # type: ignore[arg-type]


def test_the_gpu_is_cold_and_busy_when_the_events_begin() -> None:
    gpu = Gpu()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            gpu.did.append("record")

        def synchronize(self) -> None:
            gpu.did.append("wait")

        def elapsed_time(self, _end: "Event") -> float:
            return 0.25

    class Buffer:
        def __init__(self, n_bytes: int) -> None:
            assert n_bytes == 4 * (100 << 20)

        def zero_(self) -> None:
            gpu.did.append("flush")

    gpu.Event = Event  # type: ignore[attr-defined]
    value, milliseconds = DeviceClock(gpu, Buffer).time(lambda: gpu.did.append("work"))
    assert gpu.did == ["synchronize", "flush", "_sleep", "record", "work", "record", "wait"]
    assert (value, milliseconds) == (None, 0.25)
