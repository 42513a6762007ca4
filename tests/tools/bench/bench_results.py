"""Handmade results of a bench, with given times."""

from packproof.base.environment import Environment
from packproof.bench.kernels.cost import Cost
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.results import (
    BenchFinished,
    BenchResult,
    BenchStarted,
    Ceilings,
    Decile,
    Event,
    LayoutFinished,
    Pass,
    SizeProof,
    Spread,
)

ON_CPU = Environment("cpu", "Some CPU", "2.11.0", "3.6.0", "3.12.1", 1)
HERE = Environment("cuda", "Some GPU", "2.11.0", "3.6.0", "3.12.1", 8, "580.1")
CEILINGS = Ceilings(4e12, 7e14)
L2 = BenchLayout("L2", (10, 20, 34))


def spread(median: float, noise: float = 0.01) -> Spread:
    """Quartiles whose distance is `noise` of the median."""
    return Spread(median * (1 - noise / 2), median, median * (1 + noise / 2), 60)


def result(
    implementation: str = "packproof",
    ms: float = 0.25,
    noise: float = 0.01,
    layout: BenchLayout = L2,
    decile: Decile | None = None,
) -> BenchResult:
    device, host = spread(ms, noise), spread(0.03, noise)
    passes = (Pass("forward", device, host, Cost(10**9, 10**10), 2**20, decile),)
    return BenchResult(
        "rope", implementation, "h=32 k=128 r=64", "bfloat16", layout, passes, kept_bytes=2**21, channels=4096
    )


def stream(*results: BenchResult, environment: Environment = HERE, finished: bool = True) -> list[Event]:
    """The events of a bench with these results, each at its own layout."""
    proofs = [SizeProof("rope", r.implementation, r.setting, r.dtype, "passed", "", "gpu", 2, 0.5) for r in results]
    layouts = [LayoutFinished((r,)) for r in results]
    return [BenchStarted(environment, CEILINGS, 0), *proofs, *layouts, *([BenchFinished(3.0)] if finished else [])]
