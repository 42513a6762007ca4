"""The HTML report at the width of a telephone: every part of it fits, or scrolls inside its own frame."""

import dataclasses
import math
import re
from html.parser import HTMLParser

import pytest

from packproof.harness.report.maps import ErrorMap, Evidence, Layout, LeakCell, LeakMap, MapRow, TensorRow
from tests.harness.report.formats.pages import EVIDENCE, LEAK, VOID, failed, passed, rendered

TELEPHONE = 390
CARD = 336  # the part of a telephone's width that a card has for a picture


class Frames(HTMLParser):
    """The classes of the elements around each table and picture of a page, and the width of each picture."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.around: list[str] = []
        self.tables: list[str] = []
        self.pictures: list[tuple[str, float]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag == "table":
            self.tables.append(" ".join(self.around))
        if tag == "svg":
            self.pictures.append((" ".join(self.around), float(values["width"] or 0)))
        if tag not in VOID:
            self.around.append(values.get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            self.around.pop()


def long_failure(n_tokens: int) -> str:
    """A page with a failure in a sequence of so many tokens: each is wrong, and follows the last one."""
    errors = ErrorMap("y", "alone", "token", (MapRow("sequence 0", 0, (3.0,) * n_tokens),))
    rows = tuple(TensorRow("token", 0, k) for k in range(n_tokens))
    cells = (*(LeakCell(False),) * (n_tokens - 1), LeakCell(False, ("x",), ("x",)))
    leaks = LeakMap("y", "NaN", ("x",), rows, rows, (cells,) * n_tokens)
    evidence = Evidence(Layout((n_tokens,)), EVIDENCE.worst, errors, leaks, errors)
    return rendered(passed("reference"), failed(dataclasses.replace(LEAK, evidence=evidence)))


def test_every_table_scrolls_inside_its_own_frame() -> None:
    frames = Frames(long_failure(64))
    assert len(frames.tables) == 2
    assert all("scroll" in around for around in frames.tables)


@pytest.mark.parametrize("n_tokens", [1, 12, 24, 64])
def test_no_picture_on_a_telephone_is_wider_than_its_card(n_tokens: int) -> None:
    """A leak map of many columns is scaled down."""
    pictures = Frames(long_failure(n_tokens)).pictures
    classes = [around.split()[-1] for around, _ in pictures]
    assert classes.count("wide") == classes.count("narrow")
    assert len(classes) - classes.count("wide") == 4
    too_wide = [width for around, width in pictures if "wide" not in around.split() and width > CARD]
    assert len(too_wide) == (n_tokens > 24)
    assert "svg { display: block; max-width: 100%; height: auto; }" in long_failure(1)


def test_on_a_telephone_no_wrong_token_is_left_out() -> None:
    """A row of 64 tokens goes on in further lines, each with the number of its first token."""
    pictures = re.findall(r'<div class="scroll (?:wide|narrow)">(<svg.*?</svg>)', long_failure(64))
    wide, narrow = (picture for picture in pictures[:4] if "the error of y" in picture)
    assert wide.count(">×<") == narrow.count(">×<") == 64
    assert re.findall(r">from (\d+)<", narrow) == ["16", "32", "48"]
    assert "from " not in wide


def test_the_style_sheet_has_no_fixed_width_above_that_of_a_telephone() -> None:
    """The largest fixed size is the width of the page, which is an upper bound."""
    style = re.search(r"<style>(.*?)</style>", long_failure(1), re.DOTALL)
    assert style is not None
    widths = re.findall(r"(?<![-\w])(?:min-)?width: *([\d.]+)(rem|px)", style[1])
    assert all(float(size) * (16 if unit == "rem" else 1) <= TELEPHONE for size, unit in widths)
    assert "@media (max-width: 600px)" in style[1]


def test_a_cell_of_the_scoreboard_names_its_column() -> None:
    """On a telephone a row of the scoreboard is a paragraph, without the heads of the columns."""
    source = rendered(passed("reference"), failed(LEAK))
    assert '<td class="passed" data-title="fp32"' in source
    assert 'data-title="judged"' in source
    assert 'data-title="seconds"' in source


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ((0.3, 5.0), "A number above 1 is wrong and underlined."),
        ((0.3, 5.0) * 32, "A cross marks an error above 1, which is wrong."),
        ((0.3, math.inf), "A number above 1 is wrong and underlined."),
        ((0.3, 0.4), ""),
    ],
)
def test_the_legend_speaks_of_marks_that_are_there(cells: tuple[float, ...], sentence: str) -> None:
    errors = ErrorMap("y", "alone", "token", (MapRow("sequence 0", 0, cells),))
    failure = dataclasses.replace(LEAK, evidence=Evidence(Layout((len(cells),)), None, errors))
    source = rendered(failed(failure))
    sentences = ("A number above 1 is wrong and underlined.", "A cross marks an error above 1, which is wrong.")
    assert [text for text in sentences if text in source] == ([sentence] if sentence else [])
