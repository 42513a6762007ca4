"""The cost model of docs/notes/scaling.md: the time of a pack cut over N ranks, forward and backward.

t(N) = full(T / N) + collectives, with full(m) = full(T) m / T, but at least the host's time to enqueue the kernels. An
all-gather of one message from each rank takes gather(N) = α + (N - 1) · message / β.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LATENCY = 0.02  # of a collective, α in ms: assumed
NVLINK, NETWORK = 450e6, 50e6  # β, bytes per ms and direction of a GPU, in a node and between nodes: data sheets
NODE = 8  # GPUs


@dataclass(frozen=True)
class RankedOp:
    """An op at the sizes of docs/bench.md."""

    messages: tuple[int, ...] = ()
    """Bytes from each rank in each pass, whatever its tokens are."""
    full_ms: float = 0.0
    """Measured ms of 65,536 tokens of one document, forward and backward, on an H200 (L4); 0 where not needed."""
    host_ms: float = 0.0
    """Milliseconds to enqueue these kernels; 0 if not needed."""


SSD = RankedOp((4 * 64 * (64 * 128 + 1), 4 * 64 * 64 * 128), full_ms=6.904, host_ms=2.356)
SCAN = RankedOp((4 * 2 * 4096 * 16, 4 * 4096 * 16), full_ms=12.954, host_ms=1.431)
OPS: Mapping[str, RankedOp] = {
    "ssd": SSD,
    "selective_scan": SCAN,
    "causal_conv1d": RankedOp((2 * 3 * 4096,) * 2),
    "rope": RankedOp(),
}
KEYS = 2 * 2 * 16 * 128  # bytes of a token's keys and values
CHANNELS = 2 * 2048  # bytes of a token between blocks


def bandwidth(ranks: int) -> float:
    return NVLINK if ranks <= NODE else NETWORK


def gather_ms(ranks: int, message: int) -> float:
    """Milliseconds of an all-gather of one message from each rank."""
    return LATENCY + (ranks - 1) * message / bandwidth(ranks)


def collective_ms(op: str, layout: str, ranks: int, tokens: int) -> float:
    """Milliseconds of the collectives of both passes. A ring passes on each byte of an all-reduce twice."""
    remote_bytes_ms = (ranks - 1) / ranks * tokens / bandwidth(ranks)
    if op == "mamba2":
        return 2 * (LATENCY + 2 * remote_bytes_ms * CHANNELS)
    if op.startswith("attention"):
        return 2 * (LATENCY + (remote_bytes_ms * KEYS if layout == "one document" else 0.0))
    return sum(gather_ms(ranks, message) for message in OPS[op].messages)


def share(op: str, layout: str, ranks: int) -> float:
    """The slowest rank's share of the whole work.

    With one document and a causal mask the last rank has the longest rows, unless tokens are shared out zig-zag.
    """
    return (2 * ranks - 1) / ranks**2 if (op, layout) == ("attention", "one document") else 1 / ranks


def kernel_ms(op: str, layout: str, ranks: int, single_rank_ms: float) -> float:
    """Milliseconds of a rank's kernels.

    single_rank_ms: the time of all tokens on one rank.
    """
    return max(single_rank_ms * share(op, layout, ranks), OPS[op].host_ms if op in OPS else 0.0)
