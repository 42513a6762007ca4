"""The batch of a collator, or of one pack of a stream: one row, and the documents or pieces that it should have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from packproof.base.wording import kind, plural
from packproof.packers.documents import IGNORE_INDEX, DocumentCase
from packproof.packers.packings import NoPacks
from packproof.refs import Piece

OFFSETS = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_lens_q", "cu_seq_lens_k")
"""Entries with the offsets of documents, (s + 1,)."""
NUMBERS = ("seq_idx", "document_ids", "sequence_ids")
"""Entries with the number of its document for each row."""
LONGEST = ("max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_length_q", "max_length_k")
"""Entries with the length of the longest document."""


@dataclass(frozen=True)
class Collation:
    """A batch and its documents."""

    documents: DocumentCase
    batch: Mapping[str, Any]
    pieces: tuple[Piece, ...]
    """Those of the row in order, empty ones too; whole documents, but in a stream that cuts them."""

    @cached_property
    def tokens(self) -> list[int]:
        """The tokens of all pieces, one after another."""
        return [token for piece in self.pieces for token in self._of_piece(self.documents.tokens, piece)]

    @cached_property
    def labels(self) -> list[int]:
        """Their labels."""
        return [label for piece in self.pieces for label in self._of_piece(self.documents.labels, piece)]

    @cached_property
    def offsets(self) -> list[int]:
        """The first row of each piece, and the end of the last."""
        return [0, *accumulate(map(len, self.pieces))]

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each piece with a token."""
        return [start for start, piece in zip(self.offsets, self.pieces, strict=False) if len(piece)]

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.pieces), default=0)

    @property
    def rows(self) -> int:
        return len(self.row("input_ids") or [])

    def has(self, *names: str) -> bool:
        """Whether the batch has one of these entries."""
        return any(self.batch.get(name) is not None for name in names)

    def row(self, name: str) -> list[int] | None:
        """An entry along rows, (1, t) or (t,); None without it. Raises NoPacks."""
        return None if self.batch.get(name) is None else _row(name, self.batch[name])

    def mask(self) -> list[int] | None:
        """The attention mask of rows; None without one, and for one of another form. Raises NoPacks."""
        mask = self.batch.get("attention_mask")
        return None if mask is None or torch.as_tensor(mask).numel() != self.rows else self.row("attention_mask")

    def positions(self) -> list[list[int]]:
        """The positions of rows, of each axis if there are several, (axes, 1, t). Raises NoPacks."""
        value = self.batch.get("position_ids")
        if isinstance(value, torch.Tensor) and value.dim() == 3:
            return [_row("position_ids", axis) for axis in value]
        return [] if value is None else [_row("position_ids", value)]

    @staticmethod
    def _of_piece(values_of_document: Any, piece: Piece) -> list[int]:
        values: list[int] = values_of_document(piece.sequence)[piece.start : piece.stop]
        return values


def read_collation(documents: DocumentCase, value: Any) -> Collation:
    """The batch of a collator, from its return value. Raises NoPacks."""
    entries = getattr(value, "data", value)  # transformers' BatchEncoding
    if not isinstance(entries, Mapping):
        raise NoPacks(f"it returned {kind(value)}; expected a mapping with input_ids")
    whole = tuple(Piece(j, 0, n) for j, n in enumerate(documents.lengths))
    return with_equal_rows(Collation(documents, entries, whole))


def with_equal_rows(collation: Collation) -> Collation:
    """The collation, if entries along rows are as long as input_ids. Raises NoPacks if they are not."""
    if collation.row("input_ids") is None:
        raise NoPacks(
            f"the batch has {', '.join(map(str, collation.batch)) or 'no entry'}; expected input_ids among them"
        )
    named_rows = [(name, collation.row(name)) for name in (*NUMBERS, "labels", "shift_labels")]
    for name, row in (*named_rows, *(("position_ids", axis) for axis in collation.positions())):
        if row is not None and len(row) != collation.rows:
            raise NoPacks(f"{name} has {plural(len(row), 'row')}, input_ids {collation.rows}")
    return collation


def token_text(collation: Collation, token: int) -> str:
    """A token in words: whose it is."""
    if token == IGNORE_INDEX:
        return str(IGNORE_INDEX)
    for j in range(len(collation.documents.lengths)):
        ids = collation.documents.tokens(j)
        if token in ids:
            return f"token {ids.index(token)} of document {j}"
    return f"{token}, no document's"


def excerpt(values: Sequence[int], most: int = 8) -> str:
    """The first values, and the last."""
    text = ", ".join(map(str, values[:most]))
    return f"[{text}{f', … {values[-1]}' if len(values) > most else ''}]"


def _row(name: str, value: Any) -> list[int]:
    try:
        x = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise NoPacks(f"{name} is {kind(value)}; expected a tensor (1, rows)") from None
    if x.dim() not in (1, 2) or (x.dim() == 2 and len(x) != 1):
        raise NoPacks(f"{name} is {tuple(x.shape)}; expected one row, (1, rows): a padded batch is no pack")
    return [int(number) for number in x.flatten().tolist()]
