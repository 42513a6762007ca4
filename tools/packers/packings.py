"""The packs of a packer, and their laws."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any

from packproof.base.wording import kind, plural
from packproof.packers.documents import DocumentCase
from packproof.refs import Piece, pack_first_fit, pack_in_order


class NoPacks(Exception):
    """The value is no list of packs. The text names the expected form."""


@dataclass(frozen=True)
class PackedDocuments:
    """Packs of documents."""

    documents: DocumentCase
    packs: tuple[tuple[Piece, ...], ...]

    def pieces(self) -> list[list[tuple[int, Piece]]]:
        """The pieces of each document in order of arrival, with the numbers of their packs."""
        pieces: list[list[tuple[int, Piece]]] = [[] for _ in self.documents.lengths]
        for number, pack in enumerate(self.packs):
            for piece in pack:
                pieces[piece.sequence].append((number, piece))
        return pieces


@dataclass(frozen=True)
class Declared:
    """The declarations of a packer."""

    keeps_order: bool = False
    """Documents come in the order of their arrival."""
    excess: float = 0.1
    """The share of packs allowed above the baseline: first fit, or in order if it keeps the order."""
    fixed_shapes: bool = False
    """All its batches have the same shapes, as a captured or compiled step needs."""


def read_packing(documents: DocumentCase, value: Any) -> PackedDocuments:
    """The packs of a packer, from its return value. Raises NoPacks."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise NoPacks(f"it returned {kind(value)}; expected packs, each a list of numbers of documents or of pieces")
    return PackedDocuments(documents, tuple(_read_pack(documents, k, pack) for k, pack in enumerate(value)))


def _read_pack(documents: DocumentCase, number: int, pack: Any) -> tuple[Piece, ...]:
    if isinstance(pack, str | Mapping) or not isinstance(pack, Iterable):
        raise NoPacks(f"pack {number} is {kind(pack)}; expected a list of numbers of documents or of pieces")
    return tuple(_read_piece(documents, number, entry) for entry in pack)


def _read_piece(documents: DocumentCase, number: int, entry: Any) -> Piece:
    """A piece: `Piece`, (document, start, stop), or the number of a document, for all of it."""
    try:
        if isinstance(entry, Piece):
            document, start, stop = entry.sequence, entry.start, entry.stop
        elif isinstance(entry, tuple | list):
            document, start, stop = map(index, entry)
        else:
            document = index(entry)
            start, stop = 0, documents.lengths[document] if 0 <= document < len(documents.lengths) else 0
    except (TypeError, ValueError):
        raise NoPacks(
            f"pack {number} has {kind(entry)}; expected the number of a document, (document, start, stop) or a Piece"
        ) from None
    if not 0 <= document < len(documents.lengths):
        raise NoPacks(f"pack {number} has document {document} of {plural(len(documents.lengths), 'document')}")
    if not 0 <= start <= stop <= documents.lengths[document]:
        raise NoPacks(
            f"pack {number} has tokens {start} to {stop} of document {document}, which has "
            f"{plural(documents.lengths[document], 'token')}"
        )
    return Piece(document, start, stop)


def complete(packing: PackedDocuments, _: Declared) -> Iterator[str]:
    """Each token of each document is in one pack."""
    for document, pieces in enumerate(packing.pieces()):
        length = packing.documents.lengths[document]
        spans = sorted((piece.start, piece.stop, pack) for pack, piece in pieces)
        if not pieces and length:
            yield f"document {document}, of {plural(length, 'token')}, is in no pack"
            return
        if not length and len(pieces) > 1:
            yield f"document {document}, which is empty, is in packs {_numbers(k for *_, k in spans)}"
            return
        ends = [(0, 0, -1), *(span for span in spans if span[1] > span[0]), (length, length, -1)]
        for (_start, stop, number), (start, _stop, next_number) in pairwise(ends):
            if start > stop:
                yield f"tokens {stop} to {start} of document {document} are in no pack"
                return
            if start < stop:
                yield f"tokens {start} to {stop} of document {document} are in packs {_numbers((number, next_number))}"
                return


def within_capacity(packing: PackedDocuments, _: Declared) -> Iterator[str]:
    """No pack has more tokens than its capacity. A longer document may have a pack to itself: its caller sees it."""
    for number, pack in enumerate(packing.packs):
        tokens, capacity = sum(map(len, pack)), packing.documents.capacity
        parts = [piece for piece in pack if len(piece)]
        if tokens > capacity and len(parts) > 1:
            yield f"pack {number} has {plural(tokens, 'token')}, of documents {_numbers(p.sequence for p in parts)}"
            return


def in_order(packing: PackedDocuments, declared: Declared) -> Iterator[str]:
    """The pieces of a document come in order; documents too, if the packer keeps their order."""
    for document, pieces in enumerate(packing.pieces()):
        for (_, piece), (number, next_piece) in pairwise(pieces):
            if next_piece.start < piece.stop and len(next_piece):
                yield (
                    f"tokens {next_piece.start} to {next_piece.stop} of document {document} come in pack {number}, "
                    f"after tokens {piece.start} to {piece.stop}"
                )
                return
    if declared.keeps_order:
        numbers = [(number, piece.sequence) for number, pack in enumerate(packing.packs) for piece in pack]
        for (_, document), (number, next_document) in pairwise(numbers):
            if next_document < document:
                yield f"document {next_document} comes in pack {number}, after document {document}"
                return


def fill(packing: PackedDocuments, declared: Declared) -> Iterator[str]:
    """The number of packs is at most a share above first fit's."""
    documents = packing.documents
    if not documents.are_ordinary:
        return
    baseline, name = (pack_in_order, "in order") if declared.keeps_order else (_first_fit, "first fit")
    n_packs, n_baseline = len(packing.packs), len(baseline(documents.lengths, documents.capacity))
    if n_packs > n_baseline * (1 + declared.excess) + 1:  # a single pack more is the luck of a packer
        padding = 1 - sum(documents.lengths) / (n_packs * documents.capacity)
        yield f"{n_packs} packs, {name} makes {n_baseline}: {padding:.0%} of the rows are padding"
        if not declared.keeps_order and not list(in_order(packing, Declared(keeps_order=True))):
            yield "a packer that keeps the order of documents is checked with --keeps-order"


def _first_fit(lengths: tuple[int, ...], capacity: int) -> list[tuple[Piece, ...]]:
    return pack_first_fit(lengths, capacity, window=len(lengths))


PACKING_LAWS: Mapping[str, Callable[[PackedDocuments, Declared], Iterator[str]]] = {
    "complete": complete,
    "capacity": within_capacity,
    "order": in_order,
    "fill": fill,
}


def _numbers(values: Iterable[int]) -> str:
    return " and ".join(map(str, dict.fromkeys(values)))
