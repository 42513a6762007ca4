"""The laws of a collated row."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from packproof.base.wording import plural
from packproof.packers.boundaries import boundaries
from packproof.packers.collations import Collation, token_text
from packproof.packers.documents import IGNORE_INDEX
from packproof.packers.padding import mask, padding


def complete(collation: Collation) -> Iterator[str]:
    """The rows are the tokens of the documents, one after another, and then padding."""
    rows = collation.row("input_ids") or []
    for row, token in enumerate(collation.tokens):
        if row >= len(rows):
            yield f"it has {plural(len(rows), 'row')}, the documents {plural(len(collation.tokens), 'token')}"
            return
        if rows[row] != token:
            yield f"row {row} has {token_text(collation, rows[row])}; expected {token_text(collation, token)}"
            return
    for row in range(len(collation.tokens), len(rows)):
        if collation.documents.is_own(rows[row]):
            yield f"row {row}, past the last document, has {token_text(collation, rows[row])} once more"
            return


def labels(collation: Collation) -> Iterator[str]:
    """No token is predicted from another document, none is lost, and padding counts for nothing."""
    of_tokens = collation.labels
    rows = collation.row("labels")
    if rows is not None:
        # a model shifts them: the first row is predicted by none
        expected = [IGNORE_INDEX if row in collation.starts else label for row, label in enumerate(of_tokens)]
        yield from _compare_labels(collation, "labels", rows, expected, dict(enumerate(of_tokens[:1])))
    if (shifted := collation.row("shift_labels")) is not None:
        pieces = zip(collation.offsets, collation.pieces, strict=False)
        ends = {start + len(piece) - 1: piece for start, piece in pieces if len(piece)}
        expected = [IGNORE_INDEX if row in ends else of_tokens[row + 1] for row in range(len(of_tokens))]
        # the next token of a document that goes on in another pack
        next_labels = {
            row: collation.documents.labels(piece.sequence)[piece.stop]
            for row, piece in ends.items()
            if piece.stop < collation.documents.lengths[piece.sequence]
        }
        yield from _compare_labels(collation, "shift_labels", shifted, expected, next_labels)


def _compare_labels(
    collation: Collation, name: str, rows: Sequence[int], expected: Sequence[int], also: Mapping[int, int]
) -> Iterator[str]:
    for row, actual in enumerate(rows):
        label = expected[row] if row < len(expected) else IGNORE_INDEX
        if actual not in (label, also.get(row, label)):
            yield f"{name} is {token_text(collation, actual)} in row {row}; expected {token_text(collation, label)}"
            if label == IGNORE_INDEX and row in collation.starts:
                yield "a model that shifts labels predicts it from the last token of the document before"
            return


COLLATION_LAWS: Mapping[str, Callable[[Collation], Iterator[str]]] = {
    "complete": complete,
    "boundaries": boundaries,
    "padding": padding,
    "mask": mask,
    "labels": labels,
}
