"""Maps in characters, for terminals."""

from itertools import pairwise

from packproof.harness.maps import ErrorMap, LeakMap, MapRow, Place, compact

_MOST_ROWS, _MOST_CELLS = 12, 64
WITHIN, OVER, FAR, UNKNOWN = "·▒█ "
_FAR = 100.0


def error_lines(found: ErrorMap) -> list[str]:
    """One character for each token or element, one line for each sequence; nothing where it would not fit."""
    if len(found.rows) > _MOST_ROWS or found.cut or any(len(row.cells) > _MOST_CELLS for row in found.rows):
        return []
    width = max(len(row.label) for row in found.rows)
    rows = [f"  {row.label:<{width}}  {_characters(found, row)}" for row in found.rows]
    over = "other bits" if found.bitwise else "over it"
    edges = ", | chunk" if any(row.edges for row in found.rows) else ""
    legend = f"{WITHIN} within the budget, {OVER} {over}, {FAR} over {_FAR:.0f} x{edges}"
    return [f"{found.tensor} by {found.columns}, at worst {compact(found.largest)} x: {legend}", *rows]


def _characters(found: ErrorMap, row: MapRow) -> str:
    marks = [("|" if row.first + k in row.edges else "") + _mark(found, cell) for k, cell in enumerate(row.cells)]
    return "".join(marks) or "(empty)"


def _mark(found: ErrorMap, cell: float | None) -> str:
    if cell is None:
        return UNKNOWN
    if not found.wrong(cell):
        return WITHIN
    return FAR if cell > _FAR else OVER


def leak_lines(found: LeakMap) -> list[str]:
    """A matrix: a column for each row of the inputs, a line for each row of the result."""
    width = max(len(str(row)) for row in found.rows)
    changed = ", ".join(found.sources)
    head = f"what reaches {found.tensor}: {changed} changed to {found.probe}, one row at a time"
    legend = "X leak, # reached and allowed, · allowed; columns from left to right: " + _columns(found.columns)
    starts = [True, *(_group(a) != _group(b) for a, b in pairwise(found.columns))]
    rows = []
    for place, cells in zip(found.rows, found.cells, strict=True):
        marks = ["X" if c.leaks else "#" if c.reached else "·" if c.allowed else " " for c in cells]
        line = "".join(("|" if start else "") + mark for start, mark in zip(starts, marks, strict=True))
        rows.append(f"  {place!s:<{width}}  {line}|")
    return [head, f"  {legend}", *rows, *([f"  {found.cut}"] if found.cut else [])]


def _columns(places: tuple[Place, ...]) -> str:
    return ", ".join(dict.fromkeys(_group(place) for place in places))


def _group(place: Place) -> str:
    return f"sequence {place.sequence}" if place.kind == "token" else "slack" if place.kind == "slack" else "states"
