"""The file of a bench as a Markdown table, with the command, the GPU and the versions."""

from collections.abc import Iterator, Mapping
from typing import Any

from packproof.harness.bench.file import parse_record, read_json
from packproof.harness.bench.results import figures
from packproof.harness.reports.table import markdown_table, numbers, texts
from packproof.harness.results.names import short_dtype
from packproof.refs.errors import UsageError
from packproof.refs.wording import plural

_PASSES = ("forward", "backward")

Row = Mapping[str, Any]


def table(path: str) -> str:
    """The Markdown, between two comments with its origin. UsageError for another kind of file."""
    data = read_json(path, path)
    parse_record(data, path)
    try:
        return "\n".join([f"<!-- packproof table {path} -->", *_page(data), "<!-- end of table -->"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"{path} is damaged, or older than this packproof ({why}); run the bench again") from None


def _page(data: Mapping[str, Any]) -> Iterator[str]:
    yield from _heading(data)
    for op, setting, dtype in dict.fromkeys((r["op"], r["setting"], r["dtype"]) for r in data["rows"]):
        rows = [r for r in data["rows"] if (r["op"], r["setting"], r["dtype"]) == (op, setting, dtype)]
        untimed = {
            (v["implementation"], v["layout"]): word
            for kind, word in (("limits", "too large"), ("verdicts", "wrong"), ("noisy", "too noisy"))
            for v in data.get(kind, ())
            if v["op"] == op
        }
        yield from ("", f"**{op}** · {short_dtype(dtype)} · {setting}", "", *_table(rows, untimed))
    absent = {p["implementation"]: p["status"] for p in data["proofs"] if p["status"] in ("not installed", "declined")}
    if absent:
        yield from ("", "Not timed: " + ", ".join(f"{name} ({why})" for name, why in absent.items()))


def _heading(data: Mapping[str, Any]) -> Iterator[str]:
    where, ceilings = data["environment"], data["ceilings"]
    on_gpu = f", driver {where['driver']}" if where["driver"] else f", {plural(where['threads'], 'thread')}"
    matmul = f", bf16 products {ceilings['matmul'] / 1e12:.0f} TFLOP/s" if ceilings["matmul"] else ""
    yield f"`{data['command']}` on {where['name']}: packproof {data['packproof']}, torch {where['torch']},"
    yield f"triton {where['triton'] or 'none'}{on_gpu}. Milliseconds; in brackets the part of the ceiling that was"
    yield f"measured in the same run (copy {ceilings['copy'] / 1e9:.0f} GB/s{matmul}), and the time over that of"
    yield "the first row. Host: µs to enqueue a call. Kept: bytes per token and channel kept for the backward pass."


def _table(rows: list[Row], untimed: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """A line for each implementation and pass, a column for each layout; the largest host time and memory of a line."""
    layouts = list(dict.fromkeys(row["layout"] for row in rows))
    passes = [name for name in _PASSES if any(row["pass"] == name for row in rows)]
    cells = {(row["implementation"], row["pass"], row["layout"]): row for row in rows}
    names = dict.fromkeys([*(row["implementation"] for row in rows), *(name for name, _ in untimed)])
    lines = []
    for name in names:
        for pass_name in passes:
            mine = {layout: cells.get((name, pass_name, layout)) for layout in layouts}
            shown = [_cell(mine[x], _first(cells, names, pass_name, x), untimed.get((name, x), "")) for x in layouts]
            host = [r["host_ms"]["median"] for r in mine.values() if r and r["host_ms"]]
            kept = [r["kept_bytes_per_channel"] for r in mine.values() if r and r["kept_bytes_per_channel"] is not None]
            if any(shown):
                last = [f"{1e3 * max(host):.0f}" if host else "", f"{max(kept):.3g}" if kept else ""]
                lines.append([name, pass_name, *shown, *last])
    yield from markdown_table((*texts("", "pass"), *numbers(*layouts, "host", "kept")), lines)


def _first(
    cells: Mapping[tuple[str, str, str], Row], names: Mapping[str, None], pass_name: str, layout: str
) -> Row | None:
    """The row that the others of its layout and pass are compared with."""
    found = (cells.get((name, pass_name, layout)) for name in names)
    return next((row for row in found if row), None)


def _cell(row: Row | None, first: Row | None, untimed: str) -> str:
    if row is None or first is None:
        return untimed
    times = "" if row is first else f", {row['ms']['median'] / first['ms']['median']:.2f} x"
    return f"{figures(row['ms']['median'])} ({row['of_ceiling']:.0%}{times})"
