"""Error maps and leak maps as text, for terminals."""

from itertools import pairwise

from packproof.harness.report.maps.measurements import ErrorMap, Evidence, LeakCell, LeakMap, MapRow, TensorRow, compact

_MOST_ROWS, _MOST_CELLS = 12, 64
_WITHIN, _OVER, _FAR, _UNKNOWN = "·▒█?"
_IS_FAR = 100.0


def evidence_lines(evidence: Evidence) -> list[str]:
    """Both maps; for a missing one, a line with the reason."""
    errors = error_lines(evidence.errors) if evidence.errors else ["no tensor to map: nothing was compared"]
    leaks = leak_lines(evidence.leaks) if evidence.leaks else ["no leak map: nothing to trace, or too many tokens"]
    return [*errors, "", *leaks]


def small_error_lines(error_map: ErrorMap) -> list[str]:
    """The error map, if it adds to the worst element alone and fits in a few lines."""
    cells = [len(row.cells) for row in error_map.rows]
    fits = len(cells) <= _MOST_ROWS and max(cells) <= _MOST_CELLS and not error_map.omitted
    return error_lines(error_map) if fits and sum(cells) > 1 else []


def error_lines(error_map: ErrorMap) -> list[str]:
    """A line for each sequence, a character for each token or element."""
    over_text = "other bits" if error_map.bitwise else "over it"
    legend = f"{_WITHIN} within, {_OVER} {over_text}, {_FAR} over {_IS_FAR:.0f} x"
    legend += ", | chunk" if any(row.edges for row in error_map.rows) else ""
    legend += f", {_UNKNOWN} not compared" if any(None in row.cells for row in error_map.rows) else ""
    width = max(len(row.label) for row in error_map.rows)
    return [
        f"{error_map.tensor} by {error_map.columns}, at worst {compact(error_map.largest)} x the budget: {legend}",
        *(f"  {row.label:<{width}}  {_characters(error_map, row)}" for row in error_map.rows),
        *([f"  left out: {error_map.omitted}"] if error_map.omitted else []),
    ]


def _characters(error_map: ErrorMap, row: MapRow) -> str:
    marks = [_mark(error_map, cell) for cell in row.cells]
    return "".join(("|" if k + row.first_cell in row.edges else "") + mark for k, mark in enumerate(marks)) or "(empty)"


def _mark(error_map: ErrorMap, cell: float | None) -> str:
    if cell is None:
        return _UNKNOWN
    return _WITHIN if not error_map.is_wrong(cell) else _FAR if cell > _IS_FAR else _OVER


def leak_lines(leak_map: LeakMap) -> list[str]:
    """A matrix: a column for each row of the inputs, a line for each row of the result."""
    width = max(len(str(row)) for row in leak_map.rows)
    starts = [True, *(_group(a) != _group(b) for a, b in pairwise(leak_map.columns))]
    lines = []
    for tensor_row, cells in zip(leak_map.rows, leak_map.cells, strict=True):
        marks = (("|" if start else "") + _leak_mark(cell) for start, cell in zip(starts, cells, strict=True))
        lines.append(f"  {tensor_row!s:<{width}}  {''.join(marks)}|")
    return [
        f"what reaches {leak_map.tensor}: X leak, # reached as allowed, · allowed but not reached",
        *lines,
        f"  columns: {', '.join(dict.fromkeys(map(_group, leak_map.columns)))}",
        f"  changed to {leak_map.probe}, one row at a time: {', '.join(leak_map.sources)}",
        *([f"  {leak_map.omitted}"] if leak_map.omitted else []),
    ]


def _leak_mark(cell: LeakCell) -> str:
    return "X" if cell.leaks else "#" if cell.reached else "·" if cell.allowed else " "


def _group(tensor_row: TensorRow) -> str:
    return (
        f"sequence {tensor_row.sequence}"
        if tensor_row.kind == "token"
        else "slack"
        if tensor_row.kind == "slack"
        else "states"
    )
