"""Error maps and leak maps as text, for terminals."""

from itertools import pairwise

from packproof.harness.results.maps import ErrorMap, Evidence, LeakCell, LeakMap, MapRow, Place, compact

_MOST_ROWS, _MOST_CELLS = 12, 64
_WITHIN, _OVER, _FAR, _UNKNOWN = "·▒█?"
_IS_FAR = 100.0


def evidence_lines(found: Evidence) -> list[str]:
    """Both maps; for a missing one, a line with the reason."""
    errors = error_lines(found.errors) if found.errors else ["no tensor to map: nothing was compared"]
    leaks = leak_lines(found.leaks) if found.leaks else ["no leak map: nothing to trace, or too many tokens"]
    return [*errors, "", *leaks]


def small_error_lines(found: ErrorMap) -> list[str]:
    """The error map, if it adds to the worst element alone and fits in a few lines."""
    cells = [len(row.cells) for row in found.rows]
    fits = len(cells) <= _MOST_ROWS and max(cells) <= _MOST_CELLS and not found.cut
    return error_lines(found) if fits and sum(cells) > 1 else []


def error_lines(found: ErrorMap) -> list[str]:
    """A line for each sequence, a character for each token or element."""
    over = "other bits" if found.bitwise else "over it"
    legend = f"{_WITHIN} within, {_OVER} {over}, {_FAR} over {_IS_FAR:.0f} x"
    legend += ", | chunk" if any(row.edges for row in found.rows) else ""
    legend += f", {_UNKNOWN} not compared" if any(None in row.cells for row in found.rows) else ""
    width = max(len(row.label) for row in found.rows)
    return [
        f"{found.tensor} by {found.columns}, at worst {compact(found.largest)} x the budget: {legend}",
        *(f"  {row.label:<{width}}  {_characters(found, row)}" for row in found.rows),
        *([f"  left out: {found.cut}"] if found.cut else []),
    ]


def _characters(found: ErrorMap, row: MapRow) -> str:
    marks = [_mark(found, cell) for cell in row.cells]
    return "".join(("|" if k + row.first in row.edges else "") + mark for k, mark in enumerate(marks)) or "(empty)"


def _mark(found: ErrorMap, cell: float | None) -> str:
    if cell is None:
        return _UNKNOWN
    return _WITHIN if not found.wrong(cell) else _FAR if cell > _IS_FAR else _OVER


def leak_lines(found: LeakMap) -> list[str]:
    """A matrix: a column for each row of the inputs, a line for each row of the result."""
    width = max(len(str(row)) for row in found.rows)
    starts = [True, *(_group(a) != _group(b) for a, b in pairwise(found.columns))]
    lines = []
    for place, cells in zip(found.rows, found.cells, strict=True):
        marks = (("|" if start else "") + _leak_mark(cell) for start, cell in zip(starts, cells, strict=True))
        lines.append(f"  {place!s:<{width}}  {''.join(marks)}|")
    return [
        f"what reaches {found.tensor}: X leak, # reached as allowed, · allowed but not reached",
        *lines,
        f"  columns: {', '.join(dict.fromkeys(map(_group, found.columns)))}",
        f"  changed to {found.probe}, one row at a time: {', '.join(found.sources)}",
        *([f"  {found.cut}"] if found.cut else []),
    ]


def _leak_mark(cell: LeakCell) -> str:
    return "X" if cell.leaks else "#" if cell.reached else "·" if cell.allowed else " "


def _group(place: Place) -> str:
    return f"sequence {place.sequence}" if place.kind == "token" else "slack" if place.kind == "slack" else "states"
