"""The laws of a collated row."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from packproof.base.wording import plural
from packproof.packers.boundaries import boundaries
from packproof.packers.collations import Collation, token_text
from packproof.packers.documents import IGNORE_INDEX
from packproof.packers.padding import mask, padding, rows
from packproof.refs import Piece


def complete(collation: Collation) -> Iterator[str]:
    """The rows are the tokens of the documents, one after another, and then padding."""
    ids = collation.row("input_ids") or []
    for row, token in enumerate(collation.tokens):
        if row >= len(ids):
            yield f"it has {plural(len(ids), 'row')}, the documents {plural(len(collation.tokens), 'token')}"
            return
        if ids[row] != token:
            yield f"row {row} has {token_text(collation, ids[row])}; expected {token_text(collation, token)}"
            return
    for row in range(len(collation.tokens), len(ids)):
        if collation.documents.is_own(ids[row]):
            yield f"row {row}, past the last document, has {token_text(collation, ids[row])} once more"
            return


def labels(collation: Collation) -> Iterator[str]:
    """No label is lost or of another token, and padding has none."""
    for name, row, actual, expected, crosses in _other_labels(collation):
        if not crosses:
            yield f"{name} is {token_text(collation, actual)} in row {row}; expected {token_text(collation, expected)}"
            return


def crossing(collation: Collation) -> Iterator[str]:
    """No token is predicted from another document."""
    for name, row, actual, _, crosses in _other_labels(collation):
        if crosses:
            yield f"{name} is {token_text(collation, actual)} in row {row}; expected {IGNORE_INDEX}"
            if name == "labels":
                yield "a model that shifts labels predicts it from the last token of the document before"
            return


def _other_labels(collation: Collation) -> Iterator[tuple[str, int, int, int, bool]]:
    """The labels that differ: the entry, the row, the label, the expected one, and whether it crosses a boundary."""
    of_tokens = collation.labels
    if (actual_labels := collation.row("labels")) is not None:
        # a model shifts them: the first row is predicted by none
        expected = [IGNORE_INDEX if row in collation.starts else label for row, label in enumerate(of_tokens)]
        for row, actual, label in _differences(actual_labels, expected, dict(enumerate(of_tokens[:1]))):
            yield "labels", row, actual, label, row in collation.starts[1:] and actual == of_tokens[row]
    if (shifted := collation.row("shift_labels")) is not None:
        pieces = zip(collation.offsets, collation.pieces, strict=False)
        ends = {start + len(piece) - 1: piece for start, piece in pieces if len(piece)}
        expected = [IGNORE_INDEX if row in ends else of_tokens[row + 1] for row in range(len(of_tokens))]
        for row, actual, label in _differences(shifted, expected, _next_labels(collation, ends)):
            yield "shift_labels", row, actual, label, row in ends


def _next_labels(collation: Collation, ends: Mapping[int, Piece]) -> dict[int, int]:
    """The label of the next token, where a document goes on in another pack."""
    lengths, labels_of = collation.documents.lengths, collation.documents.labels
    return {
        row: labels_of(piece.sequence)[piece.stop]
        for row, piece in ends.items()
        if piece.stop < lengths[piece.sequence]
    }


def _differences(
    actual_labels: Sequence[int], expected: Sequence[int], also: Mapping[int, int]
) -> Iterator[tuple[int, int, int]]:
    for row, actual in enumerate(actual_labels):
        label = expected[row] if row < len(expected) else IGNORE_INDEX
        if actual not in (label, also.get(row, label)):
            yield row, actual, label


COLLATION_LAWS: Mapping[str, Callable[[Collation], Iterator[str]]] = {
    "complete": complete,
    "rows": rows,
    "boundaries": boundaries,
    "padding": padding,
    "mask": mask,
    "labels": labels,
    "crossing": crossing,
}
