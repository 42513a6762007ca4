"""The batch of a collator, and its laws: one row, with boundaries in any of the field's conventions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from packproof.base.wording import kind, plural
from packproof.packers.documents import IGNORE_INDEX, DocumentCase
from packproof.packers.packings import NoPacks

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

    @cached_property
    def tokens(self) -> list[int]:
        """The tokens of all documents, one after another."""
        return [token for j in range(len(self.documents.lengths)) for token in self.documents.tokens(j)]

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each document with a token."""
        offsets = [0, *accumulate(self.documents.lengths)]
        return [start for start, n in zip(offsets, self.documents.lengths, strict=False) if n]

    @property
    def rows(self) -> int:
        return len(self.row("input_ids") or [])

    def row(self, name: str) -> list[int] | None:
        """An entry along rows, (1, t) or (t,); None without it. Raises NoPacks."""
        return None if self.batch.get(name) is None else _row(name, self.batch[name])


def read_collation(documents: DocumentCase, value: Any) -> Collation:
    """The batch of a collator, from its return value. Raises NoPacks."""
    entries = getattr(value, "data", value)  # transformers' BatchEncoding
    if not isinstance(entries, Mapping):
        raise NoPacks(f"it returned {kind(value)}; expected a mapping with input_ids")
    collation = Collation(documents, entries)
    if collation.row("input_ids") is None:
        raise NoPacks(f"the batch has {', '.join(map(str, entries)) or 'no entry'}; expected input_ids among them")
    for name in (*NUMBERS, "position_ids", "labels", "shift_labels"):
        row = collation.row(name)
        if row is not None and len(row) != collation.rows:
            raise NoPacks(f"{name} has {plural(len(row), 'row')}, input_ids {collation.rows}")
    return collation


def complete(collation: Collation) -> Iterator[str]:
    """The rows are the tokens of the documents, one after another, and then padding."""
    rows = collation.row("input_ids") or []
    for row, token in enumerate(collation.tokens):
        if row >= len(rows):
            yield f"it has {plural(len(rows), 'row')}, the documents {plural(len(collation.tokens), 'token')}"
            return
        if rows[row] != token:
            yield f"row {row} has {_token_text(collation, rows[row])}; expected {_token_text(collation, token)}"
            return
    for row in range(len(collation.tokens), len(rows)):
        if rows[row] in collation.tokens:
            yield f"row {row}, past the last document, has {_token_text(collation, rows[row])} once more"
            return


def boundaries(collation: Collation) -> Iterator[str]:
    """Offsets, numbers of documents, positions and the longest length agree with the documents."""
    judges = [
        *(_offsets(collation, name) for name in OFFSETS if collation.batch.get(name) is not None),
        *(_numbers(collation, name) for name in NUMBERS if collation.batch.get(name) is not None),
        *([_positions(collation)] if collation.batch.get("position_ids") is not None else []),
    ]
    if not judges and len(collation.starts) > 1:
        names = ", ".join(map(str, collation.batch))
        yield f"the batch has {names}: nothing says where documents begin; expected one of {', '.join(OFFSETS[:1])}, "
        yield f"{NUMBERS[0]} and position_ids"
    for judge in (*judges, _longest(collation), _mask(collation)):
        for line in judge:
            yield line
            return


def _offsets(collation: Collation, name: str) -> Iterator[str]:
    values = torch.as_tensor(collation.batch[name]).flatten().tolist()
    total = len(collation.tokens)
    expected = list(dict.fromkeys([0, *accumulate(collation.documents.lengths)]))
    distinct = list(dict.fromkeys(values))
    if distinct not in (expected, list(dict.fromkeys([*expected, collation.rows]))) or values != sorted(values):
        yield f"{name} is {_excerpt(values)}; expected {_excerpt(expected)}"
    elif total < collation.rows and distinct[-1] == collation.rows and len(values) == len(distinct) == len(expected):
        yield f"{name} ends at {collation.rows}, with the padding in the last document, which ends at {total}"


def _numbers(collation: Collation, name: str) -> Iterator[str]:
    numbers = collation.row(name) or []
    starts = {*collation.starts, *([len(collation.tokens)] if len(collation.tokens) < len(numbers) else [])}
    for row in range(1, len(numbers)):
        is_change, is_start = numbers[row] != numbers[row - 1], row in starts
        if is_change != is_start and not (is_change and row > len(collation.tokens)):
            reason = "padding begins" if row == len(collation.tokens) else "a document begins"
            yield (
                f"{name} changes in row {row}, where no document begins"
                if is_change
                else f"{name} is {numbers[row]} in rows {row - 1} and {row}, where {reason}"
            )
            return


def _positions(collation: Collation) -> Iterator[str]:
    positions = collation.row("position_ids") or []
    expected = [k for n in collation.documents.lengths for k in range(n)]
    for row, (actual, position) in enumerate(zip(positions, expected, strict=False)):
        if actual != position:
            place_text = ", where a document begins" if row in collation.starts else ""
            yield f"position_ids is {actual} in row {row}{place_text}; expected {position}"
            return


def _longest(collation: Collation) -> Iterator[str]:
    for name in LONGEST:
        if collation.batch.get(name) is not None:
            value, longest = int(collation.batch[name]), max(collation.documents.lengths, default=0)
            if not longest <= value <= max(collation.rows, longest):
                yield f"{name} is {value}; expected {longest}, the longest document"
                return


def _mask(collation: Collation) -> Iterator[str]:
    """The attention mask of rows, if any: it counts tokens and no padding."""
    mask = collation.batch.get("attention_mask")
    if mask is None or torch.as_tensor(mask).numel() != collation.rows:
        return
    for row, value in enumerate(_row("attention_mask", mask)):
        if bool(value) != (row < len(collation.tokens)):
            yield f"attention_mask is {value} in row {row}, a {'token' if not value else 'row of padding'}"
            return


def labels(collation: Collation) -> Iterator[str]:
    """No token is predicted from another document, none is lost, and padding counts for nothing."""
    documents, total = collation.documents, len(collation.tokens)
    of_tokens = [label for j in range(len(documents.lengths)) for label in documents.labels(j)]
    rows = collation.row("labels")
    if rows is not None:
        # a model shifts them: the first row is predicted by none
        expected = [IGNORE_INDEX if row in collation.starts else label for row, label in enumerate(of_tokens)]
        first_label = {0: of_tokens[0]} if total else {}
        yield from _compare_labels(collation, "labels", rows, expected, first_label)
    if (shifted := collation.row("shift_labels")) is not None:
        ends = {start - 1 for start in collation.starts} | {total - 1}
        expected = [IGNORE_INDEX if row in ends else of_tokens[row + 1] for row in range(total)]
        yield from _compare_labels(collation, "shift_labels", shifted, expected, {})


def _compare_labels(
    collation: Collation, name: str, rows: Sequence[int], expected: Sequence[int], also: Mapping[int, int]
) -> Iterator[str]:
    for row, actual in enumerate(rows):
        label = expected[row] if row < len(expected) else IGNORE_INDEX
        if actual not in (label, also.get(row, label)):
            yield f"{name} is {_token_text(collation, actual)} in row {row}; expected {_token_text(collation, label)}"
            if label == IGNORE_INDEX and row in collation.starts:
                yield "a model that shifts labels predicts it from the last token of the document before"
            return


COLLATION_LAWS: Mapping[str, Callable[[Collation], Iterator[str]]] = {
    "complete": complete,
    "boundaries": boundaries,
    "labels": labels,
}


def _row(name: str, value: Any) -> list[int]:
    try:
        x = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise NoPacks(f"{name} is {kind(value)}; expected a tensor (1, rows)") from None
    if x.dim() not in (1, 2) or (x.dim() == 2 and len(x) != 1):
        raise NoPacks(f"{name} is {tuple(x.shape)}; expected one row, (1, rows): a padded batch is no pack")
    return [int(number) for number in x.flatten().tolist()]


def _token_text(collation: Collation, token: int) -> str:
    if token == IGNORE_INDEX:
        return str(IGNORE_INDEX)
    if token not in collation.tokens:
        return f"{token}, no document's"
    for j in range(len(collation.documents.lengths)):
        ids = collation.documents.tokens(j)
        if token in ids:
            return f"token {ids.index(token)} of document {j}"
    raise AssertionError(token)


def _excerpt(values: Sequence[int], most: int = 8) -> str:
    excerpt = ", ".join(map(str, values[:most]))
    return f"[{excerpt}{f', … {values[-1]}' if len(values) > most else ''}]"
