"""HTML reports for tests, and the outline of a page."""

import math
from html.parser import HTMLParser

from packproof.harness.report.events import Cell, Failure, RunFinished, RunStarted, Verdict
from packproof.harness.report.formats.html import page
from packproof.harness.report.maps import (
    ErrorMap,
    Evidence,
    Layout,
    LeakCell,
    LeakMap,
    MapRow,
    TensorRow,
    WorstElement,
)
from packproof.properties.cases.layouts import BOUNDARY_CLASSES

VOID = {"meta", "br", "hr", "img", "input", "link", "rect", "line", "path"}


class Outline(HTMLParser):
    """The text, ids and addresses of a page; fails if tags are not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: list[str] = []
        self.text: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.met.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value or "" for name, value in attributes if name == "id"]
        self.addresses += [value or "" for name, value in attributes if name in {"href", "src", "action", "xlink:href"}]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def cell(prop: str, dtype: str = "float32", target: str = "my_kernels:ssd_fwd") -> Cell:
    return Cell("ssd", target, prop, dtype, "cpu")


def passed(prop: str) -> Verdict:
    return Verdict(
        cell(prop),
        "eager",
        "passed",
        20,
        0.5,
        judged=20,
        classes=frozenset(BOUNDARY_CLASSES[:-2]),
        possible_classes=frozenset(BOUNDARY_CLASSES),
    )


def failed(failure: Failure, prop: str = "packing", target: str = "my_kernels:ssd_fwd") -> Verdict:
    return Verdict(cell(prop, target=target), "eager", "failed", 3, 0.5, judged=3, failure=failure)


PLACES = (
    TensorRow("token", 0, 0),
    TensorRow("token", 1, 0),
    TensorRow("slack", -1, 0),
    TensorRow("state", 0),
    TensorRow("state", 1),
)
CELLS = (LeakCell(True, ("x",)), LeakCell(False), LeakCell(False, ("x",), ("x",)), LeakCell(True), LeakCell(False))
ROW = MapRow("sequence 0", 0, (0.0, 0.3, 5.0, 2e4, math.inf, None), (4,))
EVIDENCE = Evidence(
    Layout((6, 0, 1), 2, "pack", 4),
    WorstElement("sequence 0, token 4", -0.4, 0.9, "alone", 1.3, (("rounding", 1e-9), ("accumulation", 1e-6))),
    ErrorMap(
        "y", "alone", "token", (MapRow("sequence 0", 0, (0.0, 0.3, 5.0, 2e4, math.inf, None), (4,)),), omitted="9 rows"
    ),
    LeakMap("y", "NaN", ("x", "z"), PLACES, PLACES[:2], (CELLS, CELLS), "7 columns"),
    ErrorMap("y", "alone", "token", (ROW, MapRow("sequence 1", 0, ()))),
)
LEAK = Failure(
    (6, 0, 1), "y", ("float32, seed 0", "sequence 1 contains sequence 0"), 3, 41, ".packproof/a b.json", EVIDENCE
)


def rendered(*verdicts: Verdict, planned: tuple[Cell, ...] = (), error: str = "") -> str:
    started = RunStarted((*(v.cell for v in verdicts), *planned), "quick", 7, ("no slack",))
    return page(started, RunFinished(verdicts, 4.0, error=error))
