"""Rows of padding and the attention mask: neither may change what a model takes for the documents of a row."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packproof.base.wording import plural
from packproof.packers.boundaries import numbered_mask
from packproof.packers.collations import NUMBERS, OFFSETS, Collation


def rows(collation: Collation) -> Iterator[str]:
    """Each entry along rows has the padding, too."""
    n_tokens, n_documents = len(collation.tokens), len(collation.pieces)
    if n_tokens in (collation.rows, n_documents, n_documents + 1):
        return  # an entry for each token cannot be told from one for each document
    for name, value in collation.batch.items():
        if _rows_of(value) == n_tokens and name not in OFFSETS:
            yield f"{name} has {plural(n_tokens, 'row')}, as many as there are tokens; input_ids has {collation.rows}"
            return


def padding(collation: Collation) -> Iterator[str]:
    """No row of padding looks like a document of its own."""
    if collation.has(*OFFSETS, *NUMBERS):
        return  # these say what is padding
    for positions in collation.positions():
        starts = [row for row in range(len(collation.tokens), collation.rows) if positions[row] == 0]
        if len(starts) > 1:
            yield f"position_ids is 0 in rows {starts[0]} and {starts[1]}, which are padding"
            yield "offsets derived from positions have a document for each of them; padding that counts up is one"
            return


def mask(collation: Collation) -> Iterator[str]:
    """The attention mask counts tokens and no padding, and hides no document."""
    values = collation.mask()
    if values is None:
        return
    for row, value in enumerate(values):
        if bool(value) != (row < len(collation.tokens)):
            yield f"attention_mask is {value} in row {row}, a {'token' if not value else 'row of padding'}"
            return
    if len(collation.starts) < 2 or collation.has(*OFFSETS, *NUMBERS):
        return
    if numbered_mask(collation) is None and collation.positions():
        yield f"attention_mask is 1 in {plural(len(collation.tokens), 'row')}, beside position_ids that begin again"
        yield "models of transformers look for documents in the positions only where there is no mask"
    elif 0 not in values and not collation.positions():
        yield "attention_mask numbers the documents, and has no 0"
        yield "models of transformers drop a mask without one for flash attention, and nothing else tells the documents"


def _rows_of(value: Any) -> int | None:
    """The rows of an entry (1, rows, ...); None for what has none."""
    if isinstance(value, str | Mapping) or value is None:
        return None
    try:
        x = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return x.shape[1] if x.dim() > 1 and len(x) == 1 else None
