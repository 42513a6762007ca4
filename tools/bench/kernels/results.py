"""The events of a bench as frozen data, and the formatting of its figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from packproof.base.environment import Environment
from packproof.base.names import short_dtype
from packproof.base.wording import plural
from packproof.bench.kernels.cost import Cost
from packproof.bench.kernels.layouts import BenchLayout
from packproof.harness.report import Tier

# unpacked: cannot be proven, timed as a bound; interpreted: correct, but its time would be meaningless
ProofStatus = Literal["passed", "failed", "unpacked", "interpreted", "declined", "not installed"]
PassName = Literal["forward", "backward", "both"]

NAME_WIDTH = 22


@dataclass(frozen=True)
class Ceilings:
    """The best of the machine, measured in the same run."""

    copy: float
    """Copy bandwidth in bytes per second, reads and writes together."""
    matmul: float | None = None
    """bf16 operations per second; None if not measured."""


class AchievedRate(NamedTuple):
    """The rate of a pass."""

    per_second: float
    unit: Literal["flop/s", "byte/s"]
    of_ceiling: float
    """The rate as a fraction of the machine's best."""


@dataclass(frozen=True)
class Spread:
    """Quartiles of a time over the rounds, in milliseconds."""

    low: float
    median: float
    high: float
    rounds: int

    @property
    def relative(self) -> float:
        """The interquartile range as a fraction of the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True)
class Decile:
    """The first decile of a time on a CPU over the rounds.

    Other work on the machine affects it little, and a single short round not at all.
    """

    ms: float
    """Milliseconds."""
    noise: float
    """The same code against itself: the ratio of the deciles of even and odd rounds, at least 1."""
    fixed_work: Mapping[str, float]
    """The first decile of fixed work in the same rounds, in milliseconds, by kind of work."""


@dataclass(frozen=True)
class Pass:
    """One pass of one implementation."""

    name: PassName
    device: Spread
    """The time of the pass."""
    host: Spread | None
    """The time to enqueue the pass; None if the host does the work."""
    cost: Cost
    peak_bytes: int | None
    """The most bytes allocated, None if unknown."""
    decile: Decile | None = None
    """None on a GPU."""


def achieved_rate(bench_pass: Pass, ceilings: Ceilings, *, matmul: bool) -> AchievedRate:
    """Operations per second if matrix products dominate, otherwise bytes per second."""
    seconds = bench_pass.device.median / 1e3
    if matmul and ceilings.matmul is not None:
        per_second = bench_pass.cost.flops / seconds
        return AchievedRate(per_second, "flop/s", per_second / ceilings.matmul)
    per_second = bench_pass.cost.bytes / seconds
    return AchievedRate(per_second, "byte/s", per_second / ceilings.copy)


@dataclass(frozen=True)
class SizeProof:
    """The result of the small proof of one implementation, before anything is timed."""

    op: str
    implementation: str
    setting: str
    """Sizes, optional inputs and options in one line."""
    dtype: str
    status: ProofStatus
    text: str = ""
    """The verdict, or why nothing was proven or will be timed."""
    tier: Tier = "eager"
    """The tier of the proof."""
    examples: int = 0
    """Examples of the proof."""
    seconds: float = 0.0
    """Time of the proof."""

    @property
    def may_be_timed(self) -> bool:
        return self.status in ("passed", "unpacked")


@dataclass(frozen=True)
class BenchResult:
    """One implementation at one layout: its passes, or its verdict if incorrect, or the limit if it cannot run here."""

    op: str
    implementation: str
    setting: str
    dtype: str
    layout: BenchLayout
    passes: tuple[Pass, ...] = ()
    kept_bytes: int | None = None
    """Bytes kept for the backward pass, without inputs and outputs; None if unknown."""
    channels: int = 1
    """Elements per token of the first input."""
    verdict: str = ""
    limit: str = ""
    """Why it declines the layout, or lacks memory for it."""
    noise: str = ""
    """The passes without a time because the same code against itself did not agree."""

    @property
    def kept_bytes_per_channel(self) -> float | None:
        """Bytes kept per token and channel."""
        return None if self.kept_bytes is None else self.kept_bytes / (self.layout.tokens * self.channels)


@dataclass(frozen=True)
class BenchStarted:
    """The machine and its ceilings; the results follow."""

    environment: Environment
    ceilings: Ceilings
    seed: int


@dataclass(frozen=True)
class LayoutFinished:
    """The results of one op at one layout, the implementation under test first."""

    results: tuple[BenchResult, ...]
    matmul: bool = False
    """Whether matrix products dominate, so that rates count operations."""


@dataclass(frozen=True)
class BenchFinished:
    seconds: float


Event = BenchStarted | SizeProof | LayoutFinished | BenchFinished


def name_width(names: Iterable[str]) -> int:
    """The width of the first column of a table, at least NAME_WIDTH."""
    return max(NAME_WIDTH, *map(len, names))


def heading(result: BenchResult) -> str:
    """Op, layout and setting of a group of results."""
    layout = result.layout
    counts = f"{plural(len(layout.lengths), 'sequence')}, {plural(layout.tokens, 'token')}, longest {layout.longest}"
    name = "" if layout.name in counts else f"{layout.name}: "
    return f"{result.op} · {name}{counts} · {short_dtype(result.dtype)}"


def figures(value: float) -> str:
    """Four significant digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def rate(bench_pass: Pass, ceilings: Ceilings, *, matmul: bool) -> tuple[str, str]:
    """The rate of a pass, and its share of the ceiling."""
    pass_rate = achieved_rate(bench_pass, ceilings, matmul=matmul)
    size, unit = (1e12, "TFLOP/s") if pass_rate.unit == "flop/s" else (1e9, "GB/s")
    return f"{pass_rate.per_second / size:.3g} {unit}", f"{pass_rate.of_ceiling:.0%}"


def microseconds(spread: Spread | None) -> str:
    """The median of a host time, in microseconds."""
    return "-" if spread is None else f"{1e3 * spread.median:.0f}"


def mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.0f}"
