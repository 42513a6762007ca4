"""Packers: which sequences go together, decided from their lengths alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from packproof.refs.arguments import whole_number
from packproof.refs.errors import LayoutError, checked_call, checked_init
from packproof.refs.packing import PackLayout
from packproof.refs.wording import counted, kind


@checked_init
@dataclass(frozen=True, order=True)
class Piece:
    """Tokens `start` to `stop` of sequence number `sequence`: all of them, unless the packer splits.

    A piece that `continues` starts from the final state of the last piece of the previous pack. Raises LayoutError for
    numbers that are not whole, negative, or end before they start.

    >>> from packproof.refs import Piece
    >>> piece = Piece(sequence=2, start=1, stop=5)
    >>> len(piece), piece.continues
    (4, True)
    """

    sequence: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        whole_number("Piece", "sequence", self.sequence)
        whole_number("Piece", "stop", self.stop, whole_number("Piece", "start", self.start))

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def continues(self) -> bool:
        """Whether it is a later part of its sequence.

        >>> from packproof.refs import Piece
        >>> Piece(0, 0, 4).continues, Piece(0, 4, 6).continues
        (False, True)
        """
        return self.start > 0


Pack = tuple[Piece, ...]


@checked_call
def pack_in_order(lengths: Iterable[int], capacity: int) -> list[Pack]:
    """Fill packs of `capacity` tokens in order of arrival; a sequence that no longer fits opens the next pack.

    lengths: tokens of each sequence. Returns packs of pieces. Raises LayoutError for a sequence longer than the
    capacity, and for what is no length or capacity.

    >>> from packproof import pack
    >>> from packproof.refs import pack_in_order
    >>> [[piece.sequence for piece in pack] for pack in pack_in_order([5, 2, 3, 4, 1, 9], capacity=10)]
    [[0, 1, 2], [3, 4], [5]]
    """
    packs: list[list[Piece]] = []
    room = -1  # no pack is open
    for piece in _whole("pack_in_order", lengths, capacity):
        if len(piece) > room:
            packs.append([])
            room = capacity
        packs[-1].append(piece)
        room -= len(piece)
    return [tuple(pack) for pack in packs]


@checked_call
def pack_best_fit(lengths: Iterable[int], capacity: int, window: int = 256) -> list[Pack]:
    """Fill packs of `capacity` tokens from the next `window` sequences, always with the longest one that still fits.

    The one that has waited longest opens each pack, so that none waits for more than `window` packs. Inside a pack the
    order is that of arrival. Raises LayoutError for a sequence longer than the capacity, and for what is no length,
    capacity or window.

    >>> from packproof import pack
    >>> from packproof.refs import pack_best_fit
    >>> [[piece.sequence for piece in pack] for pack in pack_best_fit([5, 2, 3, 4, 1, 9], capacity=10)]
    [[0, 3, 4], [1, 2], [5]]
    """
    window = whole_number("pack_best_fit", "window", window, 1)
    coming = iter(_whole("pack_best_fit", lengths, capacity))
    waiting = list(islice(coming, window))
    packs: list[Pack] = []
    while waiting:
        pack: list[Piece] = []
        room = capacity
        chosen: Piece | None = waiting[0]
        while chosen is not None:
            waiting.remove(chosen)
            waiting.extend(islice(coming, 1))
            pack.append(chosen)
            room -= len(chosen)
            chosen = max((piece for piece in waiting if len(piece) <= room), key=len, default=None)
        packs.append(tuple(sorted(pack)))
    return packs


@checked_call
def pack_with_split(lengths: Iterable[int], capacity: int) -> list[Pack]:
    """Fill every pack to the last token, in order of arrival; what does not fit continues in the next.

    Needs no padding: only the last pack may hold fewer than `capacity` tokens. At most the first piece of a pack
    continues one of the previous pack; its initial state is the final state of that pack's last piece. Raises
    LayoutError for what is no length or capacity.

    >>> from packproof import pack
    >>> from packproof.refs import pack_with_split
    >>> for pack in pack_with_split([3, 0, 9], capacity=4):
    ...     print([(piece.sequence, piece.start, piece.stop) for piece in pack])
    [(0, 0, 3), (1, 0, 0), (2, 0, 1)]
    [(2, 1, 5)]
    [(2, 5, 9)]
    """
    packs: list[list[Piece]] = []
    end = 0
    for whole in _whole("pack_with_split", lengths, capacity, split=True):
        start, end = end, end + len(whole)  # in the stream of all tokens, of which pack p holds those from p * capacity
        last = max(end - 1, 0) // capacity
        packs += [[] for _ in range(len(packs), last + 1)]
        for p in range(min(start // capacity, last), last + 1):
            cut = max(start, p * capacity), min(end, (p + 1) * capacity)
            packs[p].append(Piece(whole.sequence, cut[0] - start, cut[1] - start))
    return [tuple(pack) for pack in packs]


@checked_call
def padding_rate(packs: Iterable[Iterable[Piece]], capacity: int) -> float:
    """The share of rows that hold no token if every pack takes `capacity` rows; 0 for no packs.

    Raises LayoutError for what is no pack of pieces, or holds more than the capacity.

    >>> from packproof.refs import pack_in_order, padding_rate
    >>> padding_rate(pack_in_order([5, 2, 3, 4, 1, 9], capacity=10), capacity=10)
    0.2
    """
    capacity = whole_number("padding_rate", "capacity", capacity, 1)
    held = [_held(p, pack) for p, pack in enumerate(_iterable("padding_rate", "packs", packs))]
    for p, tokens in enumerate(held):
        if tokens > capacity:
            raise LayoutError(f"padding_rate: pack {p} has {counted(tokens, 'token')} but capacity is {capacity}")
    rows = len(held) * capacity
    return (rows - sum(held)) / rows if rows else 0.0


def _held(p: int, pack: Any) -> int:
    pieces = list(_iterable("padding_rate", f"pack {p}", pack))
    other = next((piece for piece in pieces if not isinstance(piece, Piece)), None)
    if other is not None:
        raise LayoutError(f"padding_rate: pack {p} holds {kind(other)}; pieces were expected")
    return sum(map(len, pieces))


def _iterable(function: str, name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, Iterable):
        return value
    raise LayoutError(f"{function}: {name} is {kind(value)}; what a packer returns was expected")


def _whole(packer: str, lengths: Iterable[int], capacity: int, split: bool = False) -> list[Piece]:
    capacity = whole_number(packer, "capacity", capacity, 1)
    pieces = [Piece(j, 0, length) for j, length in enumerate(PackLayout.from_lengths(lengths).lengths)]
    for piece in pieces:
        if len(piece) > capacity and not split:
            raise LayoutError(
                f"sequence {piece.sequence} has {counted(len(piece), 'token')} but a pack's capacity is {capacity}\n"
                "    Use a larger capacity, cut the sequence, or use pack_with_split."
            )
    return pieces
