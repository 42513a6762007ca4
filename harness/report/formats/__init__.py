"""Readers of the event stream: terminal, HTML, JSON, JUnit."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.report.formats.html import HtmlReport
    from packproof.harness.report.formats.json_file import JsonReport
    from packproof.harness.report.formats.junit import JunitReport
    from packproof.harness.report.formats.live import ProgressLine, live_line
    from packproof.harness.report.formats.table import (
        Column,
        fitted_table,
        markdown_table,
        numbers,
        table_line,
        texts,
        title_line,
    )
    from packproof.harness.report.formats.terminal import TerminalReport, cell_line

__all__ = [
    "Column",
    "HtmlReport",
    "JsonReport",
    "JunitReport",
    "ProgressLine",
    "TerminalReport",
    "cell_line",
    "fitted_table",
    "live_line",
    "markdown_table",
    "numbers",
    "table_line",
    "texts",
    "title_line",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.report.formats.html": ("HtmlReport",),
        "packproof.harness.report.formats.json_file": ("JsonReport",),
        "packproof.harness.report.formats.junit": ("JunitReport",),
        "packproof.harness.report.formats.live": ("ProgressLine", "live_line"),
        "packproof.harness.report.formats.table": (
            "Column",
            "fitted_table",
            "markdown_table",
            "numbers",
            "table_line",
            "texts",
            "title_line",
        ),
        "packproof.harness.report.formats.terminal": ("TerminalReport", "cell_line"),
    },
)
