"""Wrong rows of a tensor as runs of rows, and their location: sequence, tokens, chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from packproof.base.axes import role
from packproof.harness.report.maps import Layout
from packproof.properties.judgement import RowMap


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


def ranges(wrong_rows: Sequence[int], row_map: RowMap, layout: Layout) -> tuple[RowRange, ...]:
    """The runs of these rows, in ascending order. A run ends where a sequence ends."""
    runs: list[list[int]] = []
    for row in wrong_rows:
        continues_run = runs and row == runs[-1][-1] + 1 and _follows(row_map, runs[-1][-1], row)
        if continues_run:
            runs[-1].append(row)
        else:
            runs.append([row])
    return tuple(_range(run[0], run[-1], row_map, layout) for run in runs)


def _follows(row_map: RowMap, row: int, next_row: int) -> bool:
    return role(row_map.axes) != "token" or row_map.locate(row)[0] == row_map.locate(next_row)[0]


def _range(first_row: int, last_row: int, row_map: RowMap, layout: Layout) -> RowRange:
    (sequence, first_token), (_, last_token) = row_map.locate(first_row), row_map.locate(last_row)
    if first_token < 0:
        return RowRange(first_row, last_row, sequence)
    if sequence < 0:
        return RowRange(first_row, last_row, sequence, (first_token, last_token))
    chunks = None
    if layout.chunk:
        first_chunk, last_chunk = layout.chunk_of(sequence, first_token), layout.chunk_of(sequence, last_token)
        assert first_chunk is not None
        assert last_chunk is not None
        chunks = (first_chunk, last_chunk)
    edges = [0, *layout.edges(sequence), layout.lengths[sequence]]
    covered_unit = ""
    if (first_token, last_token + 1) == (0, layout.lengths[sequence]):
        covered_unit = "the sequence"
    elif chunks and chunks[0] == chunks[1] and first_token in edges and last_token + 1 in edges:
        covered_unit = "the chunk"
    return RowRange(first_row, last_row, sequence, (first_token, last_token), chunks, covered_unit)


def _span(noun: str, start: int, stop: int) -> str:
    return f"{noun} {start}" if start == stop else f"{noun}s {start} to {stop}"
