"""The file of a bench as a Markdown table, with the command, the GPU and the versions."""

from collections.abc import Iterator, Mapping, Sequence

from packproof.base.names import short_dtype
from packproof.base.wording import plural
from packproof.bench.kernels.file import BenchDocument, TimedRow, read_bench
from packproof.bench.kernels.results import figures
from packproof.harness.report.formats import markdown_table, numbers, texts

_PASSES = ("forward", "backward")

Untimed = Mapping[tuple[str, str], str]  # implementation and layout -> why there is no time


def table(path: str) -> str:
    """The Markdown, between two comments with its origin. UsageError for another kind of file."""
    document = read_bench(path, path)
    return "\n".join([f"<!-- packproof table {path} -->", *_page(document), "<!-- end of table -->"])


def _page(document: BenchDocument) -> Iterator[str]:
    yield from _heading(document)
    for op, setting, dtype in dict.fromkeys((r.op, r.setting, r.dtype) for r in document.rows):
        rows = [r for r in document.rows if (r.op, r.setting, r.dtype) == (op, setting, dtype)]
        yield from ("", f"**{op}** · {short_dtype(dtype)} · {setting}", "", *_table(rows, _untimed(document, op)))
    statuses = {p.implementation: p.status for p in document.proofs if p.status in ("not installed", "declined")}
    if statuses:
        yield from ("", "Not timed: " + ", ".join(f"{name} ({status})" for name, status in statuses.items()))


def _heading(document: BenchDocument) -> Iterator[str]:
    machine, ceilings = document.environment, document.ceilings
    on_gpu = f", driver {machine.driver}" if machine.driver else f", {plural(machine.threads, 'thread')}"
    matmul = f", bf16 products {ceilings.matmul / 1e12:.0f} TFLOP/s" if ceilings.matmul else ""
    yield f"`{document.command}` on {machine.name}: packproof {document.packproof}, torch {machine.torch},"
    yield f"triton {machine.triton or 'none'}{on_gpu}. Milliseconds; in brackets the part of the ceiling that was"
    yield f"measured in the same run (copy {ceilings.copy / 1e9:.0f} GB/s{matmul}), and the time over that of"
    yield "the first row. Host: µs to enqueue a call. Kept: bytes per token and channel kept for the backward pass."


def _untimed(document: BenchDocument, op: str) -> Untimed:
    kinds = (document.limits, "too large"), (document.verdicts, "wrong"), (document.noisy, "too noisy")
    return {(row.implementation, row.layout): words for rows, words in kinds for row in rows if row.op == op}


def _table(rows: Sequence[TimedRow], untimed: Untimed) -> Iterator[str]:
    """A line for each implementation and pass, a column for each layout; the largest host time and memory of a line."""
    layouts = list(dict.fromkeys(row.layout for row in rows))
    names = dict.fromkeys([*(row.implementation for row in rows), *(name for name, _ in untimed)])
    passes = [name for name in _PASSES if any(row.pass_name == name for row in rows)]
    base_rows: dict[tuple[str, str], TimedRow] = {}  # the others of a layout and pass are compared with these
    for row in sorted(rows, key=lambda row: list(names).index(row.implementation)):
        base_rows.setdefault((row.layout, row.pass_name), row)
    lines = []
    for name in names:
        for pass_name in passes:
            by_layout = {r.layout: r for r in rows if (r.implementation, r.pass_name) == (name, pass_name)}
            times = [
                _time_cell(by_layout[layout], base_rows[layout, pass_name])
                if layout in by_layout
                else untimed.get((name, layout), "")
                for layout in layouts
            ]
            if any(times):
                lines.append([name, pass_name, *times, *_host_and_memory(list(by_layout.values()))])
    return markdown_table((*texts("", "pass"), *numbers(*layouts, "host", "kept")), lines)


def _host_and_memory(rows: Sequence[TimedRow]) -> tuple[str, str]:
    host = [row.host_ms.median for row in rows if row.host_ms]
    kept_bytes = [row.kept_bytes_per_channel for row in rows if row.kept_bytes_per_channel is not None]
    return f"{1e3 * max(host):.0f}" if host else "", f"{max(kept_bytes):.3g}" if kept_bytes else ""


def _time_cell(row: TimedRow, base_row: TimedRow) -> str:
    ratio = "" if row is base_row else f", {row.ms.median / base_row.ms.median:.2f} x"
    return f"{figures(row.ms.median)} ({row.of_ceiling:.0%}{ratio})"
