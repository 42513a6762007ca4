"""The documents of a training step, and the forward passes of each mode over them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from packproof.base.errors import UsageError
from packproof.bench.packing import sample_lengths as draw_lengths
from packproof.refs.packers import pack_best_fit
from packproof.refs.packing import PackLayout

_N_DRAWN = 10_000
_TINY_DIVISOR = 32  # divides the lengths of documents for a tiny stack


@dataclass(frozen=True)
class ForwardPass:
    """The inputs of one forward pass of T rows, n of which predict the next token of their document."""

    input_ids: Tensor
    """(1, T)."""
    cu_seqlens: Tensor
    """(s + 1,)."""
    seq_idx: Tensor
    """(1, T) int32. Rows past the last sequence have a number of their own."""
    rows: Tensor
    """(n,), the rows that predict."""
    targets: Tensor
    """(n,), the next token of each of these rows."""
    prediction_indices: Tensor
    """(n,), the number of each prediction within the step."""

    def to(self, device: str) -> "ForwardPass":
        return ForwardPass(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class Documents:
    """The documents of a step."""

    tokens: tuple[Tensor, ...]
    """The token ids of each document."""
    capacity: int
    """The maximum number of rows in a pass."""
    packs: int
    """The maximum number of packs."""

    @property
    def lengths(self) -> list[int]:
        return [len(document) for document in self.tokens]

    @property
    def predictions(self) -> int:
        """The number of predicted tokens: all but the first of each document."""
        return sum(self.lengths) - len(self.tokens)

    def passes(self, mode: str) -> list[ForwardPass]:
        """Every document once, arranged by `mode`."""
        if mode == "single":
            return [self._forward_pass([j], self.lengths[j], 0) for j in range(len(self.tokens))]
        if mode == "padded":
            return [self._forward_pass(batch, max(self.lengths[j] for j in batch), 0) for batch in self._batches()]
        packs = pack_best_fit(self.lengths, self.capacity)
        return [self._forward_pass([piece.sequence for piece in pack], None, self.capacity) for pack in packs]

    def _batches(self) -> list[list[int]]:
        """Documents in order of arrival. A batch takes as many as its rows allow when padded to the longest."""
        batches: list[list[int]] = [[]]
        for j, length in enumerate(self.lengths):
            longest = max([length, *(self.lengths[k] for k in batches[-1])])
            if (len(batches[-1]) + 1) * longest > self.capacity:
                batches.append([])
            batches[-1].append(j)
        return batches

    def _forward_pass(self, members: Sequence[int], rows_per_document: int | None, rows: int) -> ForwardPass:
        """The documents `members`, each in `rows_per_document` rows, by default one per token; then empty rows, up to
        `rows`.
        """
        lengths = [rows_per_document or self.lengths[j] for j in members]
        layout = PackLayout.from_lengths(lengths, slack=max(rows - sum(lengths), 0))
        prediction_offsets = list(accumulate((length - 1 for length in self.lengths), initial=0))
        input_ids = torch.zeros(1, layout.total_tokens, dtype=torch.int64)
        predicting, targets, prediction_indices = [], [], []
        for (start, _), j in zip(pairwise(layout.cu_seqlens().tolist()), members, strict=True):
            tokens = self.tokens[j]
            input_ids[0, start : start + len(tokens)] = tokens
            predicting.append(start + torch.arange(len(tokens) - 1))
            targets.append(tokens[1:])
            prediction_indices.append(prediction_offsets[j] + torch.arange(len(tokens) - 1))
        seq_idx = layout.seq_idx()[None]
        seq_idx = torch.where(seq_idx < 0, len(members), seq_idx).int()
        return ForwardPass(
            input_ids, layout.cu_seqlens(), seq_idx, *map(torch.cat, (predicting, targets, prediction_indices))
        )


def documents(capacity: int, packs: int, *, vocabulary: int, tiny: bool, seed: int) -> Documents:
    """As many documents as fit into the packs, of random tokens, with lengths as `bench packing` draws them.

    The lengths are evenly spaced quantiles of a large sample, so a few documents have the mean of all. Raises
    UsageError where the longest document has more tokens than the capacity.
    """
    lengths = sorted(max(length // _TINY_DIVISOR, 2) if tiny else length for length in draw_lengths(_N_DRAWN, seed))
    if lengths[-1] > capacity:
        raise UsageError(f"--tokens: {capacity}; documents have up to {lengths[-1]:,} tokens, and none is cut")
    count = packs * capacity * len(lengths) // sum(lengths)
    while len(pack_best_fit(selected_lengths := _quantiles(lengths, count, seed), capacity)) > packs:
        count -= 1
    generator = torch.Generator().manual_seed(seed)
    tokens = (torch.randint(vocabulary, (length,), generator=generator) for length in selected_lengths)
    return Documents(tuple(tokens), capacity, packs)


def _quantiles(lengths: Sequence[int], count: int, seed: int) -> list[int]:
    """Evenly spaced quantiles of the sorted lengths, in random order."""
    quantiles = [lengths[(2 * j + 1) * len(lengths) // (2 * count)] for j in range(count)]
    random.Random(seed).shuffle(quantiles)
    return quantiles
