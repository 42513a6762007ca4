"""A run as one HTML file: it needs no network and no script, and conveys nothing by colour alone."""

import math
import re
import shlex
from collections.abc import Iterator
from typing import Any

import jinja2
from markupsafe import Markup

from packproof.base.environment import environment
from packproof.base.files import replace_text, writable_path
from packproof.base.names import short_dtype
from packproof.base.wording import printable
from packproof.harness.report import events
from packproof.harness.report.causes import Faults, place_text
from packproof.harness.report.formats.layout_svg import NARROW, error_svg, layout_svg, leak_svg, marks_text
from packproof.harness.report.formats.scoreboard import boards
from packproof.harness.report.formats.svg import LEVELS, palette
from packproof.harness.report.wording.conclusions import limits_lines, tuned_lines
from packproof.harness.report.wording.results import conclusion, counts_text, layout_classes, regime_lines, share_text
from packproof.properties.cases import shorten
from packproof.version import __version__

SYMBOLS = {
    "passed": "✓",
    "failed": "✗",
    "expected": "x",
    "stale": "✗",
    "inconclusive": "?",
    "skipped": "–",
    "error": "!",
    "not run": "·",
}
_TERMS = {
    "rounding": "u_out |r| + η_out: the rounding of the stored dtype",
    "operands": "K_op u_op B: the rounding of operands",
    "accumulation": "K_acc u_acc (B + B_E): the rounding of the accumulator",
}
_ROOM = {"maps": 800_000, "message": 1_100_000, "heading": math.inf}  # characters, for a page below 2 MB


class HtmlReport:
    """Writes the report when the run ends, also early. Raises UsageError at once if the file cannot be written."""

    def __init__(self, path: str) -> None:
        self._file = writable_path(path, "--html")
        self._run_started: events.RunStarted | None = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._run_started = event
            case events.RunFinished() if self._run_started:
                replace_text(self._file, page(self._run_started, event))


def page(run_started: events.RunStarted, run_finished: events.RunFinished) -> str:
    """The whole page."""
    devices = list(dict.fromkeys(cell.device for cell in run_started.cells))
    order = {cell: index for index, cell in enumerate(run_started.cells)}
    verdicts = sorted(run_finished.verdicts, key=lambda v: order.get(v.cell, -1))  # slack is no cell of the plan
    templates = _templates()
    return templates.get_template("page.html").render(
        started=run_started,
        finished=run_finished,
        conclusion=conclusion(run_finished),
        counts=counts_text(run_finished, sum(cell.counts for cell in run_started.cells)),
        outcome=_outcome(run_finished),
        boards=boards(verdicts),
        failures=list(_articles(templates, Faults(v for v in verdicts if v.failed))),
        expected=list(_articles(templates, Faults(v for v in verdicts if v.status == "expected"))),
        not_promised=list(
            _articles(templates, Faults(v for v in verdicts if v.status == "skipped" and v.failure)),
        ),
        regimes=regime_lines(v for v in verdicts if v.cell.counts),
        not_run=_not_run(run_started, run_finished),
        machines=[environment(device) for device in devices],
        packproof=__version__,
    )


def _articles(templates: jinja2.Environment, faults: Faults) -> Iterator[Markup]:
    """Each fault as HTML, in the fullest form that still fits on the page."""
    template, page_length, forms = templates.get_template("failure.html"), 0, dict(_ROOM)
    for fault in faults:
        for form, limit in list(forms.items()):
            text = template.render(verdict=fault.telling, others=fault.others, form=form)
            if page_length + len(text) <= limit:
                break
            del forms[form]  # once a form is too large, all later faults take a shorter one
        page_length += len(text)
        yield Markup(text)  # the template has escaped it


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("packproof.harness.report.formats"),
        autoescape=True,
        finalize=_presentable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        SYMBOLS=SYMBOLS,
        classes=lambda board: [*layout_classes(board.verdicts).items()],
        levels=_levels(),
        palette=palette(),
        terms=_TERMS,
    )
    templates.globals.update(NARROW=NARROW, marks_text=marks_text)
    templates.filters.update(short=short_dtype, slug=_slug, lengths=shorten, quoted=shlex.quote, literal=repr)
    templates.filters.update(place=place_text, limits=limits_lines, share=share_text, tuned=tuned_lines)
    templates.filters.update(layout_svg=layout_svg, error_svg=error_svg, leak_svg=leak_svg)
    return templates


def _presentable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _levels() -> list[str]:
    """The legend of the colours, one text for each level."""
    limits = [f"{limit:g}" if limit < 10_000 else f"{limit:,.0f}" for limit in LEVELS]
    return [*(f"≤ {limit}" for limit in limits), f"> {limits[-1]}"]


def _slug(cell: events.Cell) -> str:
    """The HTML anchor of a cell."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", f"{cell.op} {cell.target} {cell.law} {cell.dtype} {cell.device}")


def _outcome(run_finished: events.RunFinished) -> str:
    statuses = {verdict.status for verdict in run_finished.verdicts if verdict.cell.counts}
    if statuses & {"failed", "stale"}:
        return "failed"
    if "error" in statuses:
        return "error"
    if "inconclusive" in statuses and not (run_finished.error or run_finished.interrupted):
        return "inconclusive"
    return (
        "not run"
        if run_finished.error or run_finished.interrupted or not statuses & {"passed", "expected"}
        else "passed"
    )


def _not_run(run_started: events.RunStarted, run_finished: events.RunFinished) -> list[events.Cell]:
    finished_cells = {verdict.cell for verdict in run_finished.verdicts}
    return [cell for cell in run_started.cells if cell.counts and cell not in finished_cells]
