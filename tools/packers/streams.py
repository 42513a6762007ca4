"""The packs of a stream: of documents, of (document, piece), or of collated rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from packproof.base.wording import kind
from packproof.packers.collations import NUMBERS, OFFSETS, Collation, with_equal_rows
from packproof.packers.documents import DocumentCase
from packproof.packers.packings import NoPacks, PackedDocuments
from packproof.refs import Piece

_OF_ROWS = (*OFFSETS, *NUMBERS, "position_ids", "attention_mask")  # what a row has, and a document lacks


def read_stream(documents: DocumentCase, packs: Iterable[Any]) -> PackedDocuments:
    """The packs of a stream. All ids are different, so each token is recognised. Raises NoPacks."""
    places = _places(documents)
    return PackedDocuments(documents, tuple(_read_pack(places, number, pack) for number, pack in enumerate(packs)))


def read_rows(documents: DocumentCase, packs: Iterable[Any]) -> Iterator[Collation | None]:
    """The packs of a stream that are collated rows; None for one that is not, or has padding inside. Raises NoPacks."""
    places = _places(documents)
    for number, pack in enumerate(packs):
        entries = getattr(pack, "data", pack)
        if not isinstance(entries, Mapping) or not any(entries.get(name) is not None for name in _OF_ROWS):
            yield None
            continue
        tokens = _tokens(number, entries)
        collation = Collation(documents, entries, tuple(_pieces(places, tokens)))
        is_packed = tokens[: len(collation.tokens)] == collation.tokens
        yield with_equal_rows(collation) if is_packed else None


def _places(documents: DocumentCase) -> dict[int, tuple[int, int]]:
    return {
        token: (document, position)
        for document in range(len(documents.lengths))
        for position, token in enumerate(documents.tokens(document))
    }


def _read_pack(places: Mapping[int, tuple[int, int]], number: int, pack: Any) -> tuple[Piece, ...]:
    entries = [pack] if isinstance(pack, Mapping) else pack
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise NoPacks(f"pack {number} is {kind(pack)}; expected documents, (document, piece), or a mapping")
    return tuple(piece for entry in entries for piece in _pieces(places, _tokens(number, entry)))


def _tokens(number: int, entry: Any) -> list[int]:
    """The tokens of one entry of a pack: of a document, a part of one, or several."""
    piece = None
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Piece):
        entry, piece = entry
    value = entry.get("input_ids") if isinstance(entry, Mapping) else entry
    try:
        tokens: list[int] = torch.as_tensor(value).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        raise NoPacks(f"pack {number} has {kind(entry)}; expected a document: input_ids, or its tokens") from None
    return tokens if piece is None else tokens[piece.start : piece.stop]


def _pieces(places: Mapping[int, tuple[int, int]], tokens: Sequence[int]) -> Iterator[Piece]:
    """The runs of consecutive tokens of one document, without padding."""
    run: Piece | None = None
    for token in tokens:
        if (token_place := places.get(int(token))) is None:
            continue
        document, position = token_place
        if run is not None and (run.sequence, run.stop) == token_place:
            run = Piece(document, run.start, position + 1)
            continue
        if run is not None:
            yield run
        run = Piece(document, position, position + 1)
    if run is not None:
        yield run
