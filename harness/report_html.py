"""A run as one page for people: it needs no network and no script, and says nothing by colour alone."""

import re
from typing import Any

import jinja2
from markupsafe import Markup

import packproof
from packproof.harness import events
from packproof.harness.bench.environment import environment
from packproof.harness.files import replace_text, writable
from packproof.harness.names import short
from packproof.harness.scoreboard import Board, boards
from packproof.harness.wording import legal, summary
from packproof.properties.layouts import CLASSES

SYMBOLS = {"passed": "✓", "failed": "✗", "skipped": "–", "not run": "·"}


class HtmlReport:
    """Writes the page when the run has ended, by itself or not. Raises UsageError at once if it cannot be written."""

    def __init__(self, path: str) -> None:
        self._file = writable(path, "--html")
        self._started: events.RunStarted | None = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._started = event
            case events.RunFinished() if self._started:
                replace_text(self._file, page(self._started, event))


def page(started: events.RunStarted, finished: events.RunFinished) -> str:
    """The whole page."""
    devices = list(dict.fromkeys(cell.device for cell in started.cells))
    order = {cell: place for place, cell in enumerate(started.cells)}
    verdicts = sorted(finished.verdicts, key=lambda v: order[v.cell])
    return (
        _templates()
        .get_template("page.html")
        .render(
            started=started,
            finished=finished,
            summary=summary(finished, len(started.cells)),
            outcome=_outcome(finished),
            boards=boards(verdicts),
            failed=[v for v in verdicts if v.status == "failed"],
            not_run=_not_run(started, finished),
            machines=[environment(device) for device in devices],
            packproof=packproof.__version__,
        )
    )


def _templates() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("packproof.harness"),
        autoescape=True,
        finalize=_presentable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(SYMBOLS=SYMBOLS, classes=_classes)
    found.filters.update(short=short, slug=_slug)
    return found


def _presentable(value: Any) -> Any:
    return legal(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _slug(cell: events.Cell) -> str:
    """An anchor for a cell."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", f"{cell.op} {cell.target} {cell.property} {cell.dtype} {cell.device}")


def _outcome(finished: events.RunFinished) -> str:
    statuses = {verdict.status for verdict in finished.verdicts}
    if "failed" in statuses:
        return "failed"
    return "not run" if finished.error or finished.interrupted or "passed" not in statuses else "passed"


def _not_run(started: events.RunStarted, finished: events.RunFinished) -> list[events.Cell]:
    ended = {verdict.cell for verdict in finished.verdicts}
    return [cell for cell in started.cells if cell not in ended]


def _classes(board: Board) -> list[tuple[str, bool]]:
    """Every layout class, and whether the kernel has met it; none where no layout was drawn."""
    met = frozenset[str]().union(*(verdict.classes for verdict in board.verdicts))
    return [(name, name in met) for name in CLASSES] if met else []
