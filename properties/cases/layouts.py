"""Pack layouts at which kernels break: golden ones, a boundary-biased strategy, and the names of boundary classes.

Lengths are scaled to the chunk C of the kernel and to the width W of a convolution's window: kernels break there.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from hypothesis import strategies as st

Lengths = tuple[int, ...]
DEFAULT_CHUNK = 16
DEFAULT_WIDTH = 4


def golden_layouts(chunk: int = DEFAULT_CHUNK, width: int = DEFAULT_WIDTH) -> tuple[Lengths, ...]:
    """One layout for each known failure of packed kernels, small ones first."""
    c, w = chunk, width
    return (
        (1,),
        (c,),
        (c + 1,),
        (2 * c + 1,),
        (c, c, 1),  # boundaries on the grid
        (c - 1, 1, c, c + 1),  # one token in the last row of a chunk
        (0, 5, 0, 0, 7, 0),  # empty first, middle twice, last
        (
            1,
            max(w - 2, 0),
            max(w - 1, 0),
            w,
            w + 1,
            2,
            max(w - 1, 0),
            1,
        ),  # around the window, several resets in a chunk
        (5, 4 * c + 6, 3),  # starts inside a chunk, spans several
        (2 * c - 1, 4 * c + 2, 0, 2 * c),  # starts on the last token of a chunk
        (1,) * 17 + (0,) + (2,) * 16,  # more sequences than a table of 16 or 32 holds
        (4 * c, 1, 4 * c - 1),
        (2 * c + 1, c // 2, c // 2 + 1, c),  # ends one past the grid, around half a chunk
        (0, 0),  # slack alone
        (1, 0, 2, 0, c),
    )


def golden_segment_layouts(segment: int, chunk: int = DEFAULT_CHUNK) -> tuple[Lengths, ...]:
    """Layouts with a state that crosses the ends of segments, once and twice.

    The golden layouts are long enough for segments of up to 4 chunks. For these, one more: a chunk of its last sequence
    ends where start + end is a multiple of the segment. To a kernel that adds the offset twice it is a segment's end.
    """
    if segment > 4 * chunk:
        return (segment, 1, segment + 1), (3, 2 * segment + chunk + 1)
    return ((chunk // 2, segment - chunk + 1),) if segment > chunk else ()


class WindowLayout(NamedTuple):
    """A layout with the window of its tokens."""

    lengths: Lengths
    """Lengths of the sequences."""
    keys: Lengths | None
    """Lengths of the second packing; None where it is the first."""
    reach: tuple[int, int] | None
    """Visible tokens before and after each token; None: itself and all before."""


def golden_window_layouts(chunk: int = DEFAULT_CHUNK) -> tuple[WindowLayout, ...]:
    """Layouts for windows and tiles of up to C tokens. Each window sees one token of some tile, or all but one.

    In order:

    - A narrow window: a tile of keys before it, tiles invisible to some queries, queries and keys without any partner.
    - Twice a wide window: 2C + 1 tokens to one side reach one token of a further tile, C - 2 leave out one token of a
      tile, and tiles between are visible as a whole.
    - A causal sequence of 2C + 1 tokens. The further layouts are causal too.
    - Short sequences with fewer keys than queries.
    - More sequences than a table of 32 holds, then as many as a table of 16 holds. Each is empty or longer than a
      quarter of a tile.
    """
    c, off_grid = chunk, (2 * chunk + 1, chunk // 2, chunk // 2 + 1, chunk)
    long_lengths, short_lengths = (5, 4 * chunk + 6, 3), (1, 0, 2, 0, chunk)
    return (
        WindowLayout(off_grid, second_packing_lengths(off_grid, 4, c), (5, 2)),
        WindowLayout(long_lengths, None, (2 * c + 1, c - 2)),
        WindowLayout(long_lengths, None, (c - 2, 2 * c + 1)),
        WindowLayout((2 * c + 1,), None, None),
        WindowLayout(short_lengths, second_packing_lengths(short_lengths, 3, c), None),
        WindowLayout((c // 4 + 1,) * 33, None, None),
        WindowLayout((0,) * 15 + (c // 4 + 1,), None, None),
    )


def second_packing_lengths(lengths: Lengths, k: int, chunk: int = DEFAULT_CHUNK) -> Lengths:
    """Lengths of a second packing of the same sequences, such as keys: more, fewer, equal, none. k: the first kind."""
    length_kinds: tuple[Callable[[int], int], ...] = (
        lambda n: n + chunk // 2 + 1,
        lambda n: max(n - 1, 0),
        lambda n: n,
        lambda _: 0,
        lambda n: 2 * n + 1,
        lambda n: n // 2,
    )
    return tuple(length_kinds[(j + k) % len(length_kinds)](n) for j, n in enumerate(lengths))


def golden_key_layouts(chunk: int = DEFAULT_CHUNK) -> tuple[tuple[Lengths, Lengths], ...]:
    """Tokens and keys of a server's steps: one token or two, beside as many keys as a cache holds."""
    c = chunk
    return (
        ((1, 1, 1, 1, 1, 1), (c - 1, c, 0, c + 1, 2 * c, 2 * c + 1)),
        ((1, 2, 1), (300, 4097, 1025)),  # past the tables and the splits of decode kernels
    )


def critical_lengths(chunk: int, width: int) -> list[int]:
    """Lengths at which a kernel takes another path, in increasing order."""
    near_chunk_ends = {k * chunk + d for k in (1, 2, 3) for d in (-1, 0, 1)}
    lengths = {0, 1, 2, width - 2, width - 1, width, width + 1} | near_chunk_ends
    return sorted(n for n in lengths if n >= 0)


@st.composite
def layouts(draw: st.DrawFn, chunk: int = DEFAULT_CHUNK, width: int = DEFAULT_WIDTH, max_tokens: int = 400) -> Lengths:
    """Draw lengths with boundaries where kernels break: the number of sequences, a mode, then the lengths."""
    n = draw(st.sampled_from([2, 3, 1, 4, 5, 6, 8, 17, 33]))  # Hypothesis shrinks to the first, here and below
    mode = draw(st.sampled_from(["critical", "grid", "tiny", "huge", "any"])) if n <= 8 else "tiny"
    length = {
        "tiny": st.sampled_from([1, 0, 2, 3]),
        "any": st.integers(0, 4 * chunk),
    }.get(mode, st.sampled_from(critical_lengths(chunk, width)))
    lengths = draw(st.lists(length, min_size=n, max_size=n))
    if mode == "grid":
        lengths = _align_ends_to_grid(
            lengths, chunk, draw(st.lists(st.sampled_from([None, 0, 1, -1]), min_size=n, max_size=n))
        )
    if mode == "huge":
        lengths[draw(st.integers(0, n - 1))] = draw(st.integers(3 * chunk, 5 * chunk + 1))
    while sum(lengths) > max(max_tokens, n):
        lengths[lengths.index(max(lengths))] //= 2
    return tuple(lengths)


@st.composite
def segment_layouts(draw: st.DrawFn, segment: int) -> Lengths:
    """Draw one sequence ending on or beside the end of a segment, and up to two tiny ones on each side."""
    long_length = draw(
        st.sampled_from([k * segment + d for k, d in ((1, 1), (1, 0), (2, 1), (1, -1), (2, 0), (2, -1))])
    )
    tiny = st.lists(st.integers(0, 3), max_size=2)
    return (*draw(tiny), long_length, *draw(tiny))


def _align_ends_to_grid(lengths: Sequence[int], chunk: int, shifts: Sequence[int | None]) -> list[int]:
    """Move ends of sequences onto the chunk grid of the pack, or one token beside it."""
    aligned_lengths, start = [], 0
    for length, shift in zip(lengths, shifts, strict=True):
        end = start + length
        if shift is not None:
            end = max(start, -(-end // chunk) * chunk + shift)
        aligned_lengths.append(end - start)
        start = end
    return aligned_lengths


BOUNDARY_CLASSES = (
    "length 0",
    "length 1",
    "length < W-1",
    "length W-1",
    "length W",
    "length kC-1",
    "length kC",
    "length kC+1",
    "length > 3C",
    "empty first",
    "empty inside",
    "empty last",
    "two empty in a row",
    "start on the grid",
    "start one past the grid",
    "end one before the grid",
    "end one past the grid",
    "one token in a last row",
    "crosses a whole chunk from inside one",
    "two starts in a chunk",
    "three starts in a chunk",
    "total kC",
    "total kC+1",
    "total < C",
    "one sequence",
    "more than 16 sequences",
    "more than 32 sequences",
)


KEY_CLASSES = ("no keys", "1 key", "kC-1 keys", "kC keys", "kC+1 keys", "more than 3C keys")


def key_classes(key_lengths: Lengths, chunk: int) -> frozenset[str]:
    """The classes of the numbers of keys, of those in KEY_CLASSES."""
    c = chunk
    membership = (
        0 in key_lengths,
        1 in key_lengths,
        any(n % c == c - 1 for n in key_lengths),
        any(n and n % c == 0 for n in key_lengths),
        any(n > c and n % c == 1 for n in key_lengths),
        any(n > 3 * c for n in key_lengths),
    )
    return frozenset(itertools.compress(KEY_CLASSES, membership))


def boundary_classes(lengths: Lengths, chunk: int = DEFAULT_CHUNK, width: int = DEFAULT_WIDTH) -> frozenset[str]:
    """The boundary classes of a layout, of the 27 in BOUNDARY_CLASSES."""
    n, c, w, total = len(lengths), chunk, width, sum(lengths)
    ends = list(accumulate(lengths))
    spans = [(e - length, e) for length, e in zip(lengths, ends, strict=True) if length]
    starts_per_chunk = Counter(s // c for s, _ in spans if s).values()
    empty = [length == 0 for length in lengths]
    membership = {
        "length 0": any(empty),
        "length 1": 1 in lengths,
        "length < W-1": any(0 < length < w - 1 for length in lengths),
        "length W-1": w - 1 in lengths,
        "length W": w in lengths,
        "length kC-1": any(length % c == c - 1 for length in lengths),
        "length kC": any(length and length % c == 0 for length in lengths),
        "length kC+1": any(length > c and length % c == 1 for length in lengths),
        "length > 3C": any(length > 3 * c for length in lengths),
        "empty first": n > 1 and empty[0],
        "empty inside": any(empty[1:-1]),
        "empty last": n > 1 and empty[-1],
        "two empty in a row": any(a and b for a, b in pairwise(empty)),
        "start on the grid": any(s and s % c == 0 for s, _ in spans),
        "start one past the grid": any(s % c == 1 for s, _ in spans),
        "end one before the grid": any(e % c == c - 1 for _, e in spans),
        "end one past the grid": any(e > 1 and e % c == 1 for _, e in spans),
        "one token in a last row": any(e - s == 1 and e % c == 0 for s, e in spans),
        "crosses a whole chunk from inside one": any(s % c and e >= (s // c + 2) * c for s, e in spans),
        "two starts in a chunk": 2 in starts_per_chunk,
        "three starts in a chunk": any(k >= 3 for k in starts_per_chunk),
        "total kC": total > 0 and total % c == 0,
        "total kC+1": total > c and total % c == 1,
        "total < C": total < c,
        "one sequence": n == 1,
        "more than 16 sequences": n > 16,
        "more than 32 sequences": n > 32,
    }
    return frozenset(name for name, belongs in membership.items() if belongs)
