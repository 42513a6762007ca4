"""`packproof bench packing`: the padding of each packer, how far it reorders documents, and its time."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from packproof.refs.packers import (
    Pack,
    pack_best_fit,
    pack_first_fit,
    pack_in_order,
    pack_with_split,
    padding_rate,
)
from packproof.refs.wording import counted

CAPACITY = 4096
DOCUMENTS = 1_000_000
PACKERS = {
    "in_order": pack_in_order,
    "first_fit": pack_first_fit,
    "best_fit": pack_best_fit,
    "split": pack_with_split,
}
_BOUNDS = (57, 2048)
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
    cut: int
    """The number of cuts through documents."""
    moved: float
    """The mean distance of a document from its place of arrival, in documents."""
    most: int
    """The largest such distance."""
    seconds: float
    """CPU time on one core."""


def documents(count: int = DOCUMENTS, seed: int = 0) -> list[int]:
    """Lengths of documents as in PackMamba's training (Xu et al. 2024): 57 to 2,048 tokens, 646 on average."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.exp(_LOG_MEAN + _LOG_DEVIATION * torch.randn(count, generator=generator, dtype=torch.float64))
    lengths: list[int] = drawn.clamp(*_BOUNDS).round().int().tolist()
    return lengths


def measured(lengths: Sequence[int], capacity: int) -> Iterator[PackerRow]:
    """A row for each packer."""
    for name, packer in PACKERS.items():
        began = time.process_time()
        packs = packer(lengths, capacity)
        seconds = time.process_time() - began
        moved = [abs(j - place) for place, j in enumerate(_order(packs))]
        cut = sum(pack[0].continues for pack in packs)
        padding = padding_rate(packs, capacity)
        mean, most = (sum(moved) / len(moved), max(moved)) if moved else (0.0, 0)
        yield PackerRow(name, len(packs), padding, cut, mean, most, seconds)


def _order(packs: Iterable[Pack]) -> Iterator[int]:
    """The documents in the order of their first tokens in the packs."""
    return (piece.sequence for pack in packs for piece in pack if not piece.continues)


def table(lengths: Sequence[int], capacity: int) -> Iterator[str]:
    """The rows as lines of text. Raises LayoutError for a document longer than the capacity."""
    mean = sum(lengths) / max(len(lengths), 1)
    bounds = f"{min(lengths, default=0):,} to {max(lengths, default=0):,} tokens, mean {mean:.0f}"
    yield f"{counted(len(lengths), 'document')} of {bounds}, in packs of {capacity:,}"
    yield ""
    yield f"{'packer':<10}{'packs':>10}{'padding':>10}{'cut':>10}{'moved by, mean':>16}{'most':>8}{'µs/document':>13}"
    for row in measured(lengths, capacity):
        each = 1e6 * row.seconds / max(len(lengths), 1)
        yield (
            f"{row.packer:<10}{row.packs:>10,}{row.padding:>10.2%}{row.cut:>10,}{row.moved:>16.1f}{row.most:>8,}"
            f"{each:>13.2f}"
        )
