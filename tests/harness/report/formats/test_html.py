"""The HTML report: complete, escaped, small, without the network, and without messages in a browser."""

import dataclasses
import re
from itertools import pairwise
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.harness.report.events import Failure, Verdict
from packproof.harness.report.formats.html import HtmlReport
from packproof.harness.report.formats.svg import palette
from packproof.harness.report.maps import ErrorMap, Evidence, Layout, LeakCell, LeakMap, MapRow, WorstElement
from tests.harness.report.formats.pages import EVIDENCE, LEAK, PLACES, Outline, cell, failed, passed, rendered

SCRIPT = "<script>alert('x')</script>"
SKIPPED = Verdict(cell("carry"), "eager", "skipped", 0, 0.0, reason="the kernel takes no initial state")


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


def test_one_fault_is_one_article_to_which_all_its_cells_link() -> None:
    same_cause = dataclasses.replace(LEAK, cause="values")
    other_place = dataclasses.replace(same_cause, lengths=(70, 1), replay=".packproof/b.json", evidence=None)
    other_cause = dataclasses.replace(LEAK, cause="gradients")
    source = rendered(
        failed(other_place, "isolation"), failed(same_cause), failed(other_cause, "carry"), failed(same_cause, "memory")
    )
    assert source.count("<article") == 2
    text = words(source)
    assert (
        "The same fault in 2 other cells isolation fp32: y at lengths [70, 1] packproof replay .packproof/b.json "
        "memory fp32: y at lengths [6, 0, 1] packproof replay '.packproof/a b.json'"
    ) in text
    assert text.count("print(packproof.replay(") == 2
    outline = Outline(source)
    assert [address.removeprefix("#") for address in outline.addresses] == [
        f"ssd-my-kernels-ssd-fwd-{law}-float32-cpu" for law in ("isolation", "packing", "carry", "memory")
    ]
    assert {address.removeprefix("#") for address in outline.addresses} <= {*outline.ids}


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
