"""Packers: assign sequences to packs by their lengths alone, all at once or as they arrive."""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from packproof.base.arguments import whole_number
from packproof.base.errors import LayoutError, checked_call, checked_init
from packproof.base.wording import kind, plural
from packproof.refs.packing import PackLayout


@checked_init
@dataclass(frozen=True, order=True, slots=True)
class Piece:
    """Tokens `start` to `stop` of sequence number `sequence`: all its tokens, unless the packer splits.

    A piece that `continues` starts from the final state of the last piece of the previous pack. Raises LayoutError
    unless 0 <= start <= stop and 0 <= sequence are whole numbers.

    >>> from packproof.refs import Piece
    >>> piece = Piece(sequence=2, start=1, stop=5)
    >>> len(piece), piece.continues
    (4, True)
    """

    sequence: int
    """Number of the sequence."""
    start: int
    """The first token of the piece in its sequence."""
    stop: int
    """The end of the piece in its sequence, exclusive."""

    def __post_init__(self) -> None:
        whole_number("Piece", "sequence", self.sequence)
        whole_number("Piece", "stop", self.stop, whole_number("Piece", "start", self.start))

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def continues(self) -> bool:
        """Whether the piece is a later part of its sequence.

        >>> from packproof.refs import Piece
        >>> Piece(0, 0, 4).continues, Piece(0, 4, 6).continues
        (False, True)
        """
        return self.start > 0


Pack = tuple[Piece, ...]
_SET_SEQUENCE, _SET_START, _SET_STOP = (getattr(Piece, name).__set__ for name in Piece.__slots__)


@checked_call
def pack_in_order(lengths: Iterable[int], capacity: int) -> list[Pack]:
    """Fill packs of `capacity` tokens in order of arrival. A sequence too long for the current pack opens the next one.

    lengths: tokens of each sequence.

    Returns packs of pieces. Raises LayoutError for a sequence longer than the capacity, and for an invalid length or
    capacity.

    >>> from packproof.refs import pack_in_order
    >>> [[piece.sequence for piece in pack] for pack in pack_in_order([5, 2, 3, 4, 1, 9], capacity=10)]
    [[0, 1, 2], [3, 4], [5]]
    """
    return list(_fill_in_order(_checked_lengths(lengths), _capacity("pack_in_order", capacity)))


@checked_call
def pack_first_fit(lengths: Iterable[int], capacity: int, window: int = 16) -> list[Pack]:
    """Put each sequence into the first open pack with enough room, or into a new one. At most `window` packs are open.

    If too many are open, the oldest is closed. Inside a pack, sequences are in order of arrival. Raises LayoutError for
    a sequence longer than the capacity, and for an invalid length, capacity or window.

    >>> from packproof.refs import pack_first_fit
    >>> [[piece.sequence for piece in pack] for pack in pack_first_fit([5, 2, 4, 3, 1, 9], capacity=10)]
    [[0, 1, 3], [2, 4], [5]]
    """
    window = whole_number("pack_first_fit", "window", window, 1)
    return list(_fill_first_fit(_checked_lengths(lengths), _capacity("pack_first_fit", capacity), window))


@checked_call
def pack_best_fit(lengths: Iterable[int], capacity: int, window: int = 256) -> list[Pack]:
    """Fill packs of `capacity` tokens from the next `window` sequences, always with the longest one to fit.

    The oldest waiting sequence opens each pack, so that no sequence waits for more than `window` packs. Inside a pack,
    sequences are in order of arrival. Raises LayoutError for a sequence longer than the capacity, and for an invalid
    length, capacity or window.

    >>> from packproof.refs import pack_best_fit
    >>> [[piece.sequence for piece in pack] for pack in pack_best_fit([5, 2, 3, 4, 1, 9], capacity=10)]
    [[0, 3, 4], [1, 2], [5]]
    """
    window = whole_number("pack_best_fit", "window", window, 1)
    return list(_fill_best_fit(_checked_lengths(lengths), _capacity("pack_best_fit", capacity), window))


@checked_call
def pack_with_split(lengths: Iterable[int], capacity: int) -> list[Pack]:
    """Fill every pack to the last token, in order of arrival. A sequence is split at the end of a pack.

    Needs no padding: only the last pack may hold fewer than `capacity` tokens. At most the first piece of a pack
    continues a sequence of the previous pack. Its initial state is the final state of the last piece there. Raises
    LayoutError for an invalid length or capacity.

    >>> from packproof.refs import pack_with_split
    >>> for pack in pack_with_split([3, 0, 9], capacity=4):
    ...     print([(piece.sequence, piece.start, piece.stop) for piece in pack])
    [(0, 0, 3), (1, 0, 0), (2, 0, 1)]
    [(2, 1, 5)]
    [(2, 5, 9)]
    """
    return list(_fill_with_split(_checked_lengths(lengths), _capacity("pack_with_split", capacity)))


@checked_call
def packs_of(
    lengths: Iterable[int], capacity: int, packer: str = "best_fit", window: int | None = None
) -> Iterator[Pack]:
    """Pack a stream of sequences, possibly endless: yields each pack as soon as it is complete.

    lengths: tokens of each sequence, read only as far as the packer needs.
    capacity: tokens of a pack.
    packer: in_order, first_fit, best_fit or split, with the packs of `pack_in_order`, `pack_first_fit`,
    `pack_best_fit` and `pack_with_split`.
    window: of first_fit and best_fit; None for their default.

    Raises LayoutError at the first sequence longer than the capacity, or at the first invalid length.

    >>> from itertools import cycle, islice
    >>> from packproof.refs import packs_of
    >>> [[piece.sequence for piece in pack] for pack in islice(packs_of(cycle([5, 2, 3]), capacity=8), 3)]
    [[0, 2], [1, 3], [4, 6]]
    """
    if packer not in _PACKERS:
        raise LayoutError(f"packs_of: packer is {packer!r}; one of {', '.join(_PACKERS)} was expected")
    fill, default_window = _PACKERS[packer]
    if window is not None and default_window is None:
        raise LayoutError(f"packs_of: {packer} has no window; leave it out, or choose first_fit or best_fit")
    window_option = (
        {}
        if default_window is None
        else {"window": default_window if window is None else whole_number("packs_of", "window", window, 1)}
    )
    if not isinstance(lengths, Iterable):
        raise LayoutError(f"packs_of: lengths is {kind(lengths)}; whole numbers, one for each sequence, were expected")
    arriving = (whole_number("packs_of", f"lengths entry {j}", length) for j, length in enumerate(lengths))
    return fill(arriving, _capacity("packs_of", capacity), **window_option)


def _fill_in_order(lengths: Iterable[int], capacity: int) -> Iterator[Pack]:
    pack: list[Piece] = []
    room = capacity
    for j, length in enumerate(lengths):
        if length > room:
            _require_fit(j, length, capacity)
            yield tuple(pack)
            pack, room = [], capacity
        pack.append(_piece(j, 0, length))
        room -= length
    if pack:
        yield tuple(pack)


def _fill_first_fit(lengths: Iterable[int], capacity: int, window: int) -> Iterator[Pack]:
    packs: deque[list[Piece]] = deque()
    rooms: deque[int] = deque()
    for j, length in enumerate(lengths):
        _require_fit(j, length, capacity)
        pack_index = next((i for i, room in enumerate(rooms) if length <= room), len(rooms))
        if pack_index == len(rooms):
            packs.append([])
            rooms.append(capacity)
        packs[pack_index].append(_piece(j, 0, length))
        rooms[pack_index] -= length
        if len(packs) > window:
            rooms.popleft()
            yield tuple(packs.popleft())
    yield from map(tuple, packs)


def _fill_best_fit(lengths: Iterable[int], capacity: int, window: int) -> Iterator[Pack]:
    arrivals = enumerate(lengths)
    queue: deque[tuple[int, int]] = deque()  # (length, -sequence), in order of arrival; some are packed already
    waiting: list[tuple[int, int]] = []  # unpacked ones, sorted; the oldest of equal length is last

    def admit(count: int) -> None:
        for j, length in islice(arrivals, count):
            _require_fit(j, length, capacity)
            queue.append((length, -j))
            insort(waiting, (length, -j))

    admit(window)
    packed_sequences: set[int] = set()
    while waiting:
        while -queue[0][1] in packed_sequences:
            packed_sequences.discard(-queue.popleft()[1])
        position = bisect_right(waiting, queue[0]) - 1
        pack: list[Piece] = []
        room = capacity
        while position >= 0:
            length, minus_j = waiting.pop(position)
            packed_sequences.add(-minus_j)
            admit(1)
            pack.append(_piece(-minus_j, 0, length))
            room -= length
            position = bisect_right(waiting, (room, 1)) - 1
        yield tuple(sorted(pack, key=_sequence))


def _fill_with_split(lengths: Iterable[int], capacity: int) -> Iterator[Pack]:
    pack: list[Piece] = []
    room = capacity
    for j, length in enumerate(lengths):
        start = 0
        while length - start > room:
            if room:
                pack.append(_piece(j, start, start + room))
            start += room
            yield tuple(pack)
            pack, room = [], capacity
        pack.append(_piece(j, start, length))
        room -= length - start
    if pack:
        yield tuple(pack)


# (packer, its default window), by name
_PACKERS: Mapping[str, tuple[Callable[..., Iterator[Pack]], int | None]] = {
    "in_order": (_fill_in_order, None),
    "first_fit": (_fill_first_fit, 16),
    "best_fit": (_fill_best_fit, 256),
    "split": (_fill_with_split, None),
}


@checked_call
def padding_rate(packs: Iterable[Iterable[Piece]], capacity: int) -> float:
    """The share of rows without a token if every pack has `capacity` rows; 0 for no packs.

    Raises LayoutError unless all packs consist of pieces and fit the capacity.

    >>> from packproof.refs import pack_in_order, padding_rate
    >>> padding_rate(pack_in_order([5, 2, 3, 4, 1, 9], capacity=10), capacity=10)
    0.2
    """
    capacity = whole_number("padding_rate", "capacity", capacity, 1)
    token_counts = [_token_count(p, pack) for p, pack in enumerate(_iterable("padding_rate", "packs", packs))]
    for p, tokens in enumerate(token_counts):
        if tokens > capacity:
            raise LayoutError(f"padding_rate: pack {p} has {plural(tokens, 'token')} but capacity is {capacity}")
    rows = len(token_counts) * capacity
    return (rows - sum(token_counts)) / rows if rows else 0.0


def _token_count(p: int, pack: Any) -> int:
    pieces = list(_iterable("padding_rate", f"pack {p}", pack))
    invalid = next((piece for piece in pieces if not isinstance(piece, Piece)), None)
    if invalid is not None:
        raise LayoutError(f"padding_rate: pack {p} holds {kind(invalid)}; pieces were expected")
    return sum(map(len, pieces))


def _iterable(function: str, name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, Iterable):
        return value
    raise LayoutError(f"{function}: {name} is {kind(value)}; what a packer returns was expected")


def _checked_lengths(lengths: Iterable[int]) -> Iterable[int]:
    """The lengths of a finite input. Raises LayoutError for an invalid length, before any packing."""
    return PackLayout.from_lengths(lengths).lengths


def _capacity(packer: str, capacity: int) -> int:
    return whole_number(packer, "capacity", capacity, 1)


def _require_fit(j: int, length: int, capacity: int) -> None:
    if length > capacity:
        raise LayoutError(
            f"sequence {j} has {plural(length, 'token')} but a pack's capacity is {capacity}\n"
            "    Use a larger capacity, cut the sequence, or use pack_with_split."
        )


def _piece(sequence: int, start: int, stop: int) -> Piece:
    """A piece without the checks of `Piece`: they would take longer than the packing."""
    piece = object.__new__(Piece)
    _SET_SEQUENCE(piece, sequence)
    _SET_START(piece, start)
    _SET_STOP(piece, stop)
    return piece


def _sequence(piece: Piece) -> int:
    return piece.sequence
