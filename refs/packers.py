"""Packers: which sequences go together, decided from their lengths alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from packproof.refs.errors import LayoutError
from packproof.refs.packing import PackLayout
from packproof.refs.wording import counted


@dataclass(frozen=True, order=True)
class Piece:
    """Tokens `start` to `stop` of sequence number `sequence`: all of them, unless the packer splits.

    A piece that `continues` starts from the final state of the last piece of the previous pack.
    """

    sequence: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def continues(self) -> bool:
        return self.start > 0


Pack = tuple[Piece, ...]


def pack_in_order(lengths: Iterable[int], capacity: int) -> list[Pack]:
    """Fill packs of `capacity` tokens in order of arrival; a sequence that no longer fits opens the next pack.

    Raises LayoutError for a sequence longer than the capacity.
    """
    packs: list[list[Piece]] = []
    room = -1  # no pack is open
    for piece in _whole(lengths, capacity):
        if len(piece) > room:
            packs.append([])
            room = capacity
        packs[-1].append(piece)
        room -= len(piece)
    return [tuple(pack) for pack in packs]


def pack_best_fit(lengths: Iterable[int], capacity: int, window: int = 256) -> list[Pack]:
    """Fill packs of `capacity` tokens from the next `window` sequences, always with the longest one that still fits.

    The one that has waited longest opens each pack, so that none waits for more than `window` packs. Inside a pack the
    order is that of arrival. Raises LayoutError for a sequence longer than the capacity, or a window below 1.
    """
    if window < 1:
        raise LayoutError(f"pack_best_fit: window is {window}; at least 1 sequence was expected")
    coming = iter(_whole(lengths, capacity))
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


def pack_with_split(lengths: Iterable[int], capacity: int) -> list[Pack]:
    """Fill every pack to the last token, in order of arrival; what does not fit continues in the next.

    Needs no padding: only the last pack may hold fewer than `capacity` tokens. At most the first piece of a pack
    continues one of the previous pack; its initial state is the final state of that pack's last piece.
    """
    packs: list[list[Piece]] = []
    end = 0
    for whole in _whole(lengths, capacity, split=True):
        start, end = end, end + len(whole)  # in the stream of all tokens, of which pack p holds those from p * capacity
        last = max(end - 1, 0) // capacity
        packs += [[] for _ in range(len(packs), last + 1)]
        for p in range(min(start // capacity, last), last + 1):
            cut = max(start, p * capacity), min(end, (p + 1) * capacity)
            packs[p].append(Piece(whole.sequence, cut[0] - start, cut[1] - start))
    return [tuple(pack) for pack in packs]


def padding_rate(packs: Sequence[Sequence[Piece]], capacity: int) -> float:
    """The share of rows that hold no token if every pack takes `capacity` rows; 0 for no packs."""
    rows = len(packs) * capacity
    tokens = sum(len(piece) for pack in packs for piece in pack)
    return (rows - tokens) / rows if rows else 0.0


def _whole(lengths: Iterable[int], capacity: int, split: bool = False) -> list[Piece]:
    if capacity < 1:
        raise LayoutError(f"a pack's capacity is {capacity}; at least 1 token was expected")
    pieces = [Piece(j, 0, length) for j, length in enumerate(PackLayout.from_lengths(lengths).lengths)]
    for piece in pieces:
        if len(piece) > capacity and not split:
            raise LayoutError(
                f"sequence {piece.sequence} has {counted(len(piece), 'token')} but a pack's capacity is {capacity}\n"
                "    Use a larger capacity, cut the sequence, or use pack_with_split."
            )
    return pieces
