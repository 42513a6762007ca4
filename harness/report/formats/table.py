"""Tables of every report: rows of text below the titles of columns, aligned for a terminal or as Markdown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

Cells = Sequence[str]

_GAP = 2  # spaces between fitted columns


@dataclass(frozen=True)
class Column:
    """One column."""

    title: str
    width: int = 0
    """Characters in a terminal, with the space to its neighbour."""
    right: bool = False
    """Whether it is aligned right, as numbers are."""

    def pad(self, text: str) -> str:
        """The text in the width of the column. A longer text is not cut."""
        return f"{text:>{self.width}}" if self.right else f"{text:<{self.width}}"


Columns = Sequence[Column]


def texts(*titles: str) -> tuple[Column, ...]:
    """Columns aligned left."""
    return tuple(map(Column, titles))


def numbers(*titles: str) -> tuple[Column, ...]:
    """Columns aligned right."""
    return tuple(Column(title, right=True) for title in titles)


def title_line(columns: Columns, indent: str = "") -> str:
    """The titles as a line of a terminal."""
    return table_line(columns, [column.title for column in columns], indent)


def table_line(columns: Columns, cells: Cells, indent: str = "") -> str:
    """One row as a line of a terminal. It needs no other row: for tables that are printed as they grow."""
    return f"{indent}{''.join(column.pad(cell) for column, cell in zip(columns, cells, strict=True))}".rstrip()


def fitted_table(columns: Columns, rows: Sequence[Cells]) -> list[str]:
    """The lines of a complete table: each column is as wide as its widest cell."""
    cells_by_column = zip(columns, *rows, strict=True)
    fitted = [replace(column, width=_GAP + max(map(len, (column.title, *cells)))) for column, *cells in cells_by_column]
    return [title_line(fitted), *(table_line(fitted, row) for row in rows)]


def markdown_table(columns: Columns, rows: Iterable[Cells]) -> Iterator[str]:
    """The lines of a table in Markdown. A row with fewer cells than columns ends in empty ones."""
    yield f"|{''.join(f' {column.title} |' if column.title else ' |' for column in columns)}"
    yield f"|{''.join(' ---: |' if column.right else ' --- |' for column in columns)}"
    for cells in rows:
        escaped = (cell.replace("|", "\\|") for cell in cells)
        yield f"| {' | '.join(escaped)} |{' |' * (len(columns) - len(cells))}"
