"""The HTML report: complete, escaped, small, without the network, and without messages in a browser."""

import dataclasses
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.harness.report.events import Cell, Failure, RunFinished, RunStarted, Verdict
from packproof.harness.report.formats.html import HtmlReport, page
from packproof.harness.report.formats.svg import palette
from packproof.harness.report.maps.measurements import (
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
SCRIPT = "<script>alert('x')</script>"


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
    return Verdict(cell(prop), "eager", "passed", 20, 0.5, judged=20, classes=frozenset(BOUNDARY_CLASSES[:-2]))


def failed(failure: Failure, prop: str = "packing", target: str = "my_kernels:ssd_fwd") -> Verdict:
    return Verdict(cell(prop, target=target), "eager", "failed", 3, 0.5, judged=3, failure=failure)


SKIPPED = Verdict(cell("carry"), "eager", "skipped", 0, 0.0, reason="the kernel takes no initial state")
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


def words(source: str) -> str:
    return " ".join("".join(Outline(source).text).split())


def test_a_passing_run() -> None:
    source = rendered(passed("reference"), SKIPPED)
    text = words(source)
    assert "Every property held" in text
    assert "✓ passed 20" in text
    assert "– skipped" in text
    assert "25 of 27 classes" in text
    assert "more than 32 sequences not judged" in text
    assert "no slack" in text
    assert "my_kernels:ssd_fwd, carry: the kernel takes no initial state" in text
    assert 'id="failures"' not in source


def test_the_scoreboard_links_to_a_failure() -> None:
    outline = Outline(rendered(passed("reference"), failed(LEAK)))
    [link] = outline.addresses
    assert link.removeprefix("#") in outline.ids
    assert len(set(outline.ids)) == len(outline.ids)
    assert "sequence 1 contains sequence 0" in "".join(outline.text)


def test_an_expected_failure_has_a_section_of_its_own() -> None:
    expected = dataclasses.replace(failed(LEAK), status="expected", reason="expected: issue 12")
    source = rendered(passed("reference"), expected)
    text = words(source)
    assert "Every property held, or failed as expected" in text
    assert "Expected failures x packing (y)" in text
    assert "Expected: issue 12" in text
    assert 'id="failures"' not in source
    [link] = Outline(source).addresses
    assert link.removeprefix("#") in Outline(source).ids


def test_the_maps_of_a_failure_are_given_in_words_too() -> None:
    source = rendered(failed(LEAK))
    shown = words(source)
    for phrase in (
        "sequence 0: 6 tokens",
        "dashed lines the edges of chunks of 4 from the start of the pack",
        "sequence 0, token 3: 2e+04 x the budget",
        "sequence 0, token 5: not compared",
        "Left out: 9 rows.",
        "Before shrinking, example 3: error of y by token",
        "sequence 1 ∅",
        "slack row 0 → sequence 1, token 0: leaks through x",
        "sequence 0, token 0 → sequence 0, token 0: reached through x, as allowed",
        "Which inputs reach y: 2 leaks",
        "Note: 7 columns.",
        "the rounding of the accumulator ← dominant",
        "packproof replay '.packproof/a b.json'",
        "print(packproof.replay('.packproof/a b.json').text)",
        "print(packproof.diff('my_kernels:ssd_fwd', case='.packproof/a b.json'))",
    ):
        assert phrase in shown, phrase
    assert source.count('class="cross"') == 2


def test_a_run_of_failures_stays_below_two_megabytes() -> None:
    """Maps are left out first, then messages; each failure keeps its heading."""
    wide = MapRow("sequence 0", 0, (3.0,) * 64)
    large = dataclasses.replace(EVIDENCE, errors=ErrorMap("y", "alone", "token", (wide,) * 24))
    long = dataclasses.replace(LEAK, evidence=large, lines=("x" * 1000,) * 2)
    source = rendered(*(failed(long, target=f"a.py:f{k}") for k in range(800)))
    assert len(source.encode()) < 2_000_000
    assert "The maps are left out" in source
    assert source.count("<article") == 800
    assert source.count("Left out: this page would grow too large") > 100


def test_colours_differ_in_lightness() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    shades = [lightness(colour) for colour in palette()]
    assert all(b - a > 0.05 for a, b in pairwise(shades))


def test_what_was_not_run_is_reported() -> None:
    text = words(rendered(passed("reference"), planned=(cell("memory"),), error="OSError: disk full"))
    assert "Packproof itself failed" in text
    assert "my_kernels:ssd_fwd, memory at fp32: OSError: disk full" in text


def test_text_from_elsewhere_is_escaped() -> None:
    errors = ErrorMap(SCRIPT, SCRIPT, "token", (MapRow(SCRIPT, 0, (2.0,)),), omitted=SCRIPT)
    map_ = LeakMap(SCRIPT, "NaN", (SCRIPT,), PLACES[:1], PLACES[:1], ((LeakCell(True, (SCRIPT,)),),), SCRIPT)
    evidence = Evidence(Layout((1,)), WorstElement(SCRIPT, 0, 1, SCRIPT, 1), errors, map_)
    lines = (SCRIPT, "\x00\x1b[31m\ud800", "</pre></style>")
    hostile = Failure((1,), SCRIPT, lines, 1, 1, f"{SCRIPT}.json", evidence)
    source = rendered(failed(hostile, target=f"a.py:{SCRIPT}"), error=SCRIPT)
    outline = Outline(source)
    assert "script" not in outline.met
    assert SCRIPT in "".join(outline.text)
    assert "\\x00\\x1b[31m\\ud800" in source
    source.encode()


def test_nothing_is_loaded() -> None:
    source = rendered(passed("reference"), failed(LEAK))
    assert not re.search(r"https?:|//|url\(|@import", source)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(Outline(source).met)
    assert "default-src 'none'" in source


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--html: the folder"):
        HtmlReport(str(tmp_path / "none/page.html"))


@pytest.fixture
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium on this machine")
    return found


def test_a_browser_logs_nothing(browser: str, tmp_path: Path) -> None:
    """The page loads, and nothing is blocked or logged: console messages go to stderr as CONSOLE."""
    file = tmp_path / "page.html"
    file.write_text(rendered(passed("reference"), failed(LEAK)), encoding="utf-8")
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync", "extensions")
    options = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    where = [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom", file.as_uri()]
    done = subprocess.run(
        [browser, *options, *where], capture_output=True, text=True, timeout=120, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert 'id="scoreboard"' in done.stdout
