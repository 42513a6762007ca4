"""Layouts and maps as SVG. Every cell has its numbers in its title, and a mark as well as a colour."""

from itertools import pairwise

from markupsafe import Markup

from packproof.harness.reports.svg import LEVELS, Drawing, level
from packproof.harness.results.maps import ErrorMap, Layout, LeakCell, LeakMap, MapRow, Place, compact
from packproof.refs.wording import counted

_WIDTH = 960.0
_MOST_BARS = 128


def layout_svg(layout: Layout) -> Markup:
    """The pack as one bar: sequences, their boundaries, the edges of chunks, slack."""
    left, top, height = 10.0, 24.0, 30.0
    shown = layout.lengths[:_MOST_BARS]
    slack = layout.slack if shown == layout.lengths else 0
    unit = min(36.0, (_WIDTH - 2 * left) / max(1, sum(shown) + slack))
    bottom = top + height
    picture = Drawing(2 * left + unit * (sum(shown) + slack) + 60, bottom + 22, f"a pack of lengths {list(shown)}")
    x = left
    for j, length in enumerate(shown):
        bar, shade = unit * length, sum(map(bool, shown[:j])) % 2  # neighbours differ, also across empty ones
        picture.rect(x, top, bar, height, f"bar b{shade}", f"sequence {j}: {counted(length, 'token')}")
        for p in range(1, length) if unit >= 8 else ():
            picture.line(x + unit * p, bottom - 5, x + unit * p, bottom, "tick")
        for p in layout.edges(j):
            picture.line(x + unit * p, top - 4, x + unit * p, bottom + 4, "edge")
        picture.line(x, top - 8, x, bottom + 8, "boundary")
        if length:
            picture.text(f"{j}: {length}" if bar >= 34 else str(j) if bar >= 14 else "", x + bar / 2, top + 20, "in")
        elif j == 0 or shown[j - 1]:  # of adjacent empty sequences only the first is marked
            picture.text("∅", x, top - 11)
        x += bar
    picture.line(x, top - 8, x, bottom + 8, "boundary")
    if slack:
        picture.rect(x, top, unit * slack, height, "slack", f"{counted(slack, 'row')} of slack")
        picture.text("slack" if unit * slack >= 34 else "", x + unit * slack / 2, top + 20)
    picture.text("0", left, bottom + 20, "small")
    end = "token" if sum(shown) == 1 else "tokens ..." if shown != layout.lengths else "tokens"
    picture.text(f"{sum(shown)} {end}", x, bottom + 20, "small", "start")
    return picture.markup()


def error_svg(found: ErrorMap) -> Markup:
    """Sequences as rows, tokens as columns; cells hold a number if there is room, otherwise a cross."""
    left, top, height = 96.0, 20.0, 24.0
    most = max(len(row.cells) for row in found.rows)
    unit = min(36.0, (_WIDTH - left - 10) / max(1, most))
    picture = Drawing(left + unit * most + 20, top + height * len(found.rows) + 6, f"the error of {found.tensor}")
    picture.text(found.columns, left - 10, top - 7, "small", "end")
    for k in range(0, most, 1 if unit >= 20 else 5):
        picture.text(str(found.rows[0].first + k), left + unit * (k + 0.5), top - 7, "small")
    for i, row in enumerate(found.rows):
        y, end = top + height * i, left + unit * len(row.cells)
        picture.text(row.label if row.cells else f"{row.label} ∅", left - 10, y + 16, anchor="end")
        for k, cell in enumerate(row.cells):
            _error_cell(picture, found, row, k, cell, left + unit * k, y, unit, height - 2)
        for x in dict.fromkeys((left, end)):
            picture.line(x, y - 1, x, y + height - 1, "boundary")
        for p in row.edges:
            if left < (x := left + unit * (p - row.first)) < end:
                picture.line(x, y - 1, x, y + height - 1, "edge")
    return picture.markup()


def _error_cell(
    picture: Drawing,
    found: ErrorMap,
    row: MapRow,
    k: int,
    cell: float | None,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    where = f"{row.label}, {found.columns} {row.first + k}"
    if cell is None:
        picture.rect(x + 0.5, y, width - 1, height, "unknown", f"{where}: not compared")
        return
    error = f"{cell:.4g} x the budget" + (", other bits" if found.bitwise and cell > 0 else "")
    wrong, shade = found.wrong(cell), level(cell)
    picture.rect(x + 0.5, y, width - 1, height, f"l{shade}", f"{where}: {error}")
    mark = "×" if wrong else ""
    if width >= 26 and cell > 0:
        mark = compact(cell)
    ink = "dark" if 2 * shade > len(LEVELS) else "light"
    picture.text(mark, x + width / 2, y + 15, f"{ink} wrong" if wrong else ink)


def leak_svg(found: LeakMap) -> Markup:
    """A matrix: changed input rows as columns, result rows as rows; leaks are crossed."""
    left, top = 128.0, 40.0
    unit = max(9.0, min(26.0, (_WIDTH - left - 10) / max(1, len(found.columns))))
    right, bottom = left + unit * len(found.columns), top + unit * len(found.rows)
    picture = Drawing(max(right + 20, 320.0), bottom + 8, f"which inputs reach {found.tensor}")
    columns, rows = _groups(found.columns), _groups(found.rows)
    picture.rect(left, top, right - left, bottom - top, "apart", "not reached")
    picture.text("changed", left - 10, top - 22, "small", "end")
    for start, stop in columns:
        name = _group_name(found.columns[start], unit * (stop - start))
        picture.text(name, left + unit * (start + stop) / 2, top - 22)
        for k in range(start, stop) if unit >= 16 else ():
            place = found.columns[k]
            number = place.sequence if place.kind == "state" else place.position
            picture.text(str(number), left + unit * (k + 0.5), top - 6, "small")
    for i, (place, cells) in enumerate(zip(found.rows, found.cells, strict=True)):
        y = top + unit * i
        if unit >= 12 or place.position <= 0:
            picture.text(_row_name(place), left - 10, y + unit * 0.68, "small", "end")
        for k, cell in enumerate(cells):
            if cell.allowed or cell.reached:
                x = left + unit * k
                kind, text = _leak_kind(cell)
                picture.rect(x + 1, y + 1, unit - 2, unit - 2, kind, f"{found.columns[k]} → {place}: {text}")
                if cell.leaks:
                    picture.cross(x, y, unit)
    for x in (left, *(left + unit * stop for _, stop in columns)):
        picture.line(x, top - 14, x, bottom, "boundary")
    for y in (top, *(top + unit * stop for _, stop in rows)):
        picture.line(left - 6, y, right, y, "boundary")
    return picture.markup()


def _groups(places: tuple[Place, ...]) -> list[tuple[int, int]]:
    """Start and end of the rows of each sequence, of the slack and of the states."""
    keys = [(p.kind, p.sequence if p.kind == "token" else -1) for p in places]
    starts = [k for k in range(len(keys)) if k == 0 or keys[k] != keys[k - 1]]
    return list(pairwise([*starts, len(keys)]))


def _group_name(place: Place, width: float) -> str:
    if place.kind == "token":
        return f"seq {place.sequence}" if width >= 44 else str(place.sequence)
    return {"slack": "slack", "state": "states"}.get(place.kind, "") if width >= 36 else place.kind[:2]


def _row_name(place: Place) -> str:
    return {
        "token": f"seq {place.sequence}, token {place.position}",
        "slack": f"slack {place.position}",
        "state": f"state {place.sequence}",
        "shared": "all",
    }[place.kind]


def _leak_kind(cell: LeakCell) -> tuple[str, str]:
    """The style of a cell and its text."""
    if cell.leaks:
        return "leak", f"leaks through {', '.join(cell.leaks)}"
    if cell.reached:
        return "reached", f"reached through {', '.join(cell.reached)}, as allowed"
    return "allowed", "not reached, though allowed"
