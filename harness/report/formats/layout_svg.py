"""Layouts and maps as SVG. Every cell has its numbers in its title, and a mark as well as a colour.

Each picture is drawn for a width: `WIDE` for a screen, `NARROW` for a telephone, where no pointer opens a title.
"""

from itertools import pairwise

from markupsafe import Markup

from packproof.base.wording import plural
from packproof.harness.report.formats.svg import LEVELS, Drawing, level
from packproof.harness.report.maps.measurements import ErrorMap, Layout, LeakCell, LeakMap, MapRow, TensorRow, compact

WIDE, NARROW = 960.0, 336.0
_LABELS = 110.0  # the width of the names of rows
_MOST_BARS, _MOST_NARROW_COLUMNS = 128, 24
_NUMBER_WIDTH, _CROSS_WIDTH = 26.0, 13.0  # the least width of a cell with a number, and with a cross, in it
_LARGEST_CELL, _LARGEST_LEAK = 36.0, 26.0  # at this size a picture is the same for both widths


def layout_svg(layout: Layout, width: float = WIDE) -> Markup:
    """The pack as one bar: sequences, their boundaries, the edges of chunks, slack."""
    x0, y0, height = 10.0, 24.0, 30.0
    visible_lengths = layout.lengths[:_MOST_BARS]
    slack = layout.slack if visible_lengths == layout.lengths else 0
    unit = min(_LARGEST_CELL, (width - 2 * x0 - 60) / max(1, sum(visible_lengths) + slack))
    y1 = y0 + height
    picture = Drawing(
        2 * x0 + unit * (sum(visible_lengths) + slack) + 60, y1 + 22, f"a pack of lengths {list(visible_lengths)}"
    )
    x = x0
    for j, length in enumerate(visible_lengths):
        bar, shade = unit * length, sum(map(bool, visible_lengths[:j])) % 2  # neighbours differ, also across empty ones
        picture.rect(x, y0, bar, height, f"bar b{shade}", f"sequence {j}: {plural(length, 'token')}")
        for p in range(1, length) if unit >= 8 else ():
            picture.line(x + unit * p, y1 - 5, x + unit * p, y1, "tick")
        for p in layout.edges(j):
            picture.line(x + unit * p, y0 - 4, x + unit * p, y1 + 4, "edge")
        picture.line(x, y0 - 8, x, y1 + 8, "boundary")
        if length:
            picture.text(f"{j}: {length}" if bar >= 34 else str(j) if bar >= 14 else "", x + bar / 2, y0 + 20, "in")
        elif j == 0 or visible_lengths[j - 1]:  # of adjacent empty sequences only the first is marked
            picture.text("∅", x, y0 - 11)
        x += bar
    picture.line(x, y0 - 8, x, y1 + 8, "boundary")
    if slack:
        picture.rect(x, y0, unit * slack, height, "slack", f"{plural(slack, 'row')} of slack")
        picture.text("slack" if unit * slack >= 34 else "", x + unit * slack / 2, y0 + 20)
    picture.text("0", x0, y1 + 20, "small")
    end = "token" if sum(visible_lengths) == 1 else "tokens ..." if visible_lengths != layout.lengths else "tokens"
    picture.text(f"{sum(visible_lengths)} {end}", x, y1 + 20, "small", "start")
    return picture.markup()


def error_svg(error_map: ErrorMap, width: float = WIDE) -> Markup:
    """Sequences as rows, tokens as columns; a row too long for the width goes on in the next line.

    Cells hold a number if there is room, otherwise a cross.
    """
    x0, y0, height = _LABELS, 20.0, 24.0
    most_cells = max(len(row.cells) for row in error_map.rows)
    unit, n_cells = _cell_width(error_map, width), min(most_cells, _cells_in_a_line(width))
    lines = [(row, k) for row in error_map.rows for k in range(0, len(row.cells) or 1, n_cells or 1)]
    picture = Drawing(
        x0 + unit * n_cells + 10, y0 + height * len(lines) + 6, f"the error of {error_map.tensor}", titles=width == WIDE
    )
    picture.text(error_map.columns, x0 - 10, y0 - 7, "small", "end")
    for k in range(0, n_cells, 1 if unit >= 20 else 5) if n_cells == most_cells else ():
        picture.text(str(error_map.rows[0].first_cell + k), x0 + unit * (k + 0.5), y0 - 7, "small")
    for i, (row, start) in enumerate(lines):
        cells = row.cells[start : start + n_cells]
        y, end = y0 + height * i, x0 + unit * len(cells)
        if start:
            picture.text(f"from {row.first_cell + start}", x0 - 10, y + 16, "small", "end")
        else:
            picture.text(row.label if cells else f"{row.label} ∅", x0 - 10, y + 16, anchor="end")
        for k, cell in enumerate(cells):
            _error_cell(picture, error_map, row, start + k, cell, x0 + unit * k, y, unit, height - 2)
        for x in dict.fromkeys((x0, end)):
            picture.line(x, y - 1, x, y + height - 1, "boundary")
        for p in row.edges:
            if x0 < (x := x0 + unit * (p - row.first_cell - start)) < end:
                picture.line(x, y - 1, x, y + height - 1, "edge")
    return picture.markup()


def marks_text(error_map: ErrorMap, width: float = WIDE) -> str:
    """What a mark in the picture means; "" if no cell has one."""
    if error_map.bitwise:
        return "The bits had to agree here: any difference is wrong, the budget is only the scale."
    if not any(error_map.is_wrong(cell) for row in error_map.rows for cell in row.cells):
        return ""
    if _cell_width(error_map, width) >= _NUMBER_WIDTH:
        return "A number above 1 is wrong and underlined."
    return "A cross marks an error above 1, which is wrong."


def _cell_width(error_map: ErrorMap, width: float) -> float:
    most_cells = max(len(row.cells) for row in error_map.rows)
    return min(_LARGEST_CELL, (width - _LABELS - 10) / max(1, min(most_cells, _cells_in_a_line(width))))


def _cells_in_a_line(width: float) -> int:
    return int((width - _LABELS - 10) / _CROSS_WIDTH)


def _error_cell(
    picture: Drawing,
    error_map: ErrorMap,
    row: MapRow,
    k: int,
    cell: float | None,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    position = f"{row.label}, {error_map.columns} {row.first_cell + k}"
    if cell is None:
        picture.rect(x + 0.5, y, width - 1, height, "unknown", f"{position}: not compared")
        return
    error = f"{cell:.4g} x the budget" + (", other bits" if error_map.bitwise and cell > 0 else "")
    wrong, shade = error_map.is_wrong(cell), level(cell)
    picture.rect(x + 0.5, y, width - 1, height, f"l{shade}", f"{position}: {error}")
    mark = "×" if wrong else ""
    if width >= _NUMBER_WIDTH and cell > 0:
        mark = compact(cell)
    ink = "dark" if 2 * shade > len(LEVELS) else "light"
    picture.text(mark, x + width / 2, y + 15, f"{ink} wrong" if wrong else ink)


def leak_svg(leak_map: LeakMap, width: float = WIDE) -> Markup:
    """A matrix: changed input rows as columns, result rows as rows; leaks are crossed.

    One of many columns is the same picture at each width, to be scaled down.
    """
    if len(leak_map.columns) > _MOST_NARROW_COLUMNS:
        width = WIDE
    x0, y0 = _LABELS, 40.0
    unit = min(_LARGEST_LEAK, (width - x0 - 10) / max(1, len(leak_map.columns)))
    x1, y1 = x0 + unit * len(leak_map.columns), y0 + unit * len(leak_map.rows)
    picture = Drawing(
        max(x1 + 10, 320.0),
        y1 + 8,
        f"which inputs reach {leak_map.tensor}",
        titles=width == WIDE or unit == _LARGEST_LEAK,
    )
    columns, rows = _groups(leak_map.columns), _groups(leak_map.rows)
    picture.rect(x0, y0, x1 - x0, y1 - y0, "apart", "not reached")
    picture.text("changed", x0 - 10, y0 - 22, "small", "end")
    for start, stop in columns:
        name = _group_name(leak_map.columns[start], unit * (stop - start))
        picture.text(name, x0 + unit * (start + stop) / 2, y0 - 22)
        for k in range(start, stop) if unit >= 16 else ():
            tensor_row = leak_map.columns[k]
            number = tensor_row.sequence if tensor_row.kind == "state" else tensor_row.position
            picture.text(str(number), x0 + unit * (k + 0.5), y0 - 6, "small")
    for i, (tensor_row, cells) in enumerate(zip(leak_map.rows, leak_map.cells, strict=True)):
        y = y0 + unit * i
        if unit >= 12 or tensor_row.position <= 0:
            picture.text(_row_name(tensor_row), x0 - 10, y + unit * 0.68, "small", "end")
        for k, cell in enumerate(cells):
            if cell.allowed or cell.reached:
                x = x0 + unit * k
                kind, text = _leak_kind(cell)
                picture.rect(x + 1, y + 1, unit - 2, unit - 2, kind, f"{leak_map.columns[k]} → {tensor_row}: {text}")
                if cell.leaks:
                    picture.cross(x, y, unit)
    for x in (x0, *(x0 + unit * stop for _, stop in columns)):
        picture.line(x, y0 - 14, x, y1, "boundary")
    for y in (y0, *(y0 + unit * stop for _, stop in rows)):
        picture.line(x0 - 6, y, x1, y, "boundary")
    return picture.markup()


def _groups(tensor_rows: tuple[TensorRow, ...]) -> list[tuple[int, int]]:
    """Start and end of the rows of each sequence, of the slack and of the states."""
    keys = [(p.kind, p.sequence if p.kind == "token" else -1) for p in tensor_rows]
    starts = [k for k in range(len(keys)) if k == 0 or keys[k] != keys[k - 1]]
    return list(pairwise([*starts, len(keys)]))


def _group_name(tensor_row: TensorRow, width: float) -> str:
    if tensor_row.kind == "token":
        return f"seq {tensor_row.sequence}" if width >= 44 else str(tensor_row.sequence) if width >= 12 else ""
    return {"slack": "slack", "state": "states"}.get(tensor_row.kind, "") if width >= 36 else tensor_row.kind[:2]


def _row_name(tensor_row: TensorRow) -> str:
    return {
        "token": f"seq {tensor_row.sequence}, token {tensor_row.position}",
        "slack": f"slack {tensor_row.position}",
        "state": f"state {tensor_row.sequence}",
        "shared": "all",
    }[tensor_row.kind]


def _leak_kind(cell: LeakCell) -> tuple[str, str]:
    """The style of a cell and its text."""
    if cell.leaks:
        return "leak", f"leaks through {', '.join(cell.leaks)}"
    if cell.reached:
        return "reached", f"reached through {', '.join(cell.reached)}, as allowed"
    return "allowed", "not reached, though allowed"
