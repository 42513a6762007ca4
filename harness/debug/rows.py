"""Wrong rows of a tensor as runs of rows, and their location: sequence, tokens, chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from packproof.harness.results.maps import Layout
from packproof.properties.comparison import RowMap
from packproof.refs.axes import role


@dataclass(frozen=True)
class RowRange:
    """A run of rows of a tensor, within one sequence if rows are tokens."""

    first: int
    """The first row, counted from the start of the tensor."""
    last: int
    """The last row, included."""
    sequence: int = -1
    """The sequence of the first row; -1 for slack and for shared tensors."""
    tokens: tuple[int, int] | None = None
    """Positions of the first and last row in the sequence, or in the slack. None if rows are not tokens."""
    chunks: tuple[int, int] | None = None
    """Chunks of the first and last row in the kernel's promised grid. None without a grid."""
    whole: str = ""
    """The unit covered by the run as a whole: "the sequence", "the chunk" or ""."""

    def __str__(self) -> str:
        rows = _span("row", self.first, self.last)
        if self.tokens is None:
            return rows if self.sequence < 0 else _span("sequence", self.first, self.last)
        if self.sequence < 0:
            return f"{rows} ({_span('slack row', *self.tokens)})"
        words = [f"sequence {self.sequence}", _span("token", *self.tokens)]
        words += [_span("chunk", *self.chunks)] if self.chunks else []
        return f"{rows} ({', '.join(words)}{f': all of {self.whole}' if self.whole else ''})"


def ranges(wrong: Sequence[int], rows: RowMap, layout: Layout) -> tuple[RowRange, ...]:
    """The runs of these rows, in ascending order. A run ends where a sequence ends."""
    runs: list[list[int]] = []
    for row in wrong:
        joins = runs and row == runs[-1][-1] + 1 and _follows(rows, runs[-1][-1], row)
        if joins:
            runs[-1].append(row)
        else:
            runs.append([row])
    return tuple(_range(run[0], run[-1], rows, layout) for run in runs)


def _follows(rows: RowMap, one: int, next_one: int) -> bool:
    return role(rows.axes) != "token" or rows.locate(one)[0] == rows.locate(next_one)[0]


def _range(first: int, last: int, rows: RowMap, layout: Layout) -> RowRange:
    (sequence, token), (_, end) = rows.locate(first), rows.locate(last)
    if token < 0:
        return RowRange(first, last, sequence)
    if sequence < 0:
        return RowRange(first, last, sequence, (token, end))
    chunks = None
    if layout.chunk:
        one, other = layout.chunk_of(sequence, token), layout.chunk_of(sequence, end)
        assert one is not None
        assert other is not None
        chunks = (one, other)
    edges = [0, *layout.edges(sequence), layout.lengths[sequence]]
    whole = ""
    if (token, end + 1) == (0, layout.lengths[sequence]):
        whole = "the sequence"
    elif chunks and chunks[0] == chunks[1] and token in edges and end + 1 in edges:
        whole = "the chunk"
    return RowRange(first, last, sequence, (token, end), chunks, whole)


def _span(noun: str, first: int, last: int) -> str:
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"
