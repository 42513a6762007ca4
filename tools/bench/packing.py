"""`packproof bench packing`: the padding of each packer, how far it reorders documents, and its time."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from packproof.base.wording import plural
from packproof.refs.packers import (
    Pack,
    pack_best_fit,
    pack_first_fit,
    pack_in_order,
    pack_with_split,
    padding_rate,
)

PACK_CAPACITY = 4096
DOCUMENT_COUNT = 1_000_000
PACKERS = {
    "in_order": pack_in_order,
    "first_fit": pack_first_fit,
    "best_fit": pack_best_fit,
    "split": pack_with_split,
}
_LENGTH_BOUNDS = (57, 2048)
# log-normal, clamped to both bounds, as by a tokenizer with a maximum length: mean 646, a seventh at the maximum
_LOG_MEAN, _LOG_DEVIATION = 5.722, 1.75


@dataclass(frozen=True)
class PackerRow:
    """The measurements of one packer."""

    packer: str
    """Its name."""
    packs: int
    """The number of packs."""
    padding: float
    """The share of rows without a token."""
    cuts: int
    """The number of cuts through documents."""
    mean_displacement: float
    """The mean distance of a document from its place of arrival, in documents."""
    max_displacement: int
    """The largest such distance."""
    seconds: float
    """CPU time on one core."""


def sample_lengths(count: int = DOCUMENT_COUNT, seed: int = 0) -> list[int]:
    """Lengths of documents as in PackMamba's training (Xu et al. 2024): 57 to 2,048 tokens, 646 on average."""
    generator = torch.Generator().manual_seed(seed)
    raw_lengths = torch.exp(_LOG_MEAN + _LOG_DEVIATION * torch.randn(count, generator=generator, dtype=torch.float64))
    lengths: list[int] = raw_lengths.clamp(*_LENGTH_BOUNDS).round().int().tolist()
    return lengths


def measure_packers(lengths: Sequence[int], capacity: int) -> Iterator[PackerRow]:
    """A row for each packer."""
    for name, packer in PACKERS.items():
        start = time.process_time()
        packs = packer(lengths, capacity)
        seconds = time.process_time() - start
        displacements = [abs(j - position) for position, j in enumerate(_arrival_order(packs))]
        cuts = sum(pack[0].continues for pack in packs)
        padding = padding_rate(packs, capacity)
        mean_displacement, max_displacement = (
            (sum(displacements) / len(displacements), max(displacements)) if displacements else (0.0, 0)
        )
        yield PackerRow(name, len(packs), padding, cuts, mean_displacement, max_displacement, seconds)


def _arrival_order(packs: Iterable[Pack]) -> Iterator[int]:
    """The documents in the order of their first tokens in the packs."""
    return (piece.sequence for pack in packs for piece in pack if not piece.continues)


def packer_lines(lengths: Sequence[int], capacity: int) -> Iterator[str]:
    """The rows as lines of text. Raises LayoutError for a document longer than the capacity."""
    mean = sum(lengths) / max(len(lengths), 1)
    bounds = f"{min(lengths, default=0):,} to {max(lengths, default=0):,} tokens, mean {mean:.0f}"
    yield f"{plural(len(lengths), 'document')} of {bounds}, in packs of {capacity:,}"
    yield ""
    yield f"{'packer':<10}{'packs':>10}{'padding':>10}{'cut':>10}{'moved by, mean':>16}{'most':>8}{'µs/document':>13}"
    for row in measure_packers(lengths, capacity):
        microseconds = 1e6 * row.seconds / max(len(lengths), 1)
        yield (
            f"{row.packer:<10}{row.packs:>10,}{row.padding:>10.2%}{row.cuts:>10,}{row.mean_displacement:>16.1f}{row.max_displacement:>8,}"
            f"{microseconds:>13.2f}"
        )
