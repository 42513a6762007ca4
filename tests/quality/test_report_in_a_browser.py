"""The HTML report in a real browser: nothing of it is cut, on a screen and on a telephone, and nothing is logged.

It needs Chromium and is skipped where there is none. PACKPROOF_PICTURES=FOLDER keeps a picture of each page.
"""

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.report.formats.pages import LEAK, failed, passed, rendered
from tests.harness.report.formats.test_html_widths import long_failure
from tests.in_process import packproof_in
from tests.quality import failing_kernels

pytestmark = pytest.mark.proof

KINDS = ("leak_at_a_tile", "wrong_gradient", "unwritten_row", "slack", "refusal")
WIDTHS = (1280, 390)
TALL = 60_000  # no page is longer: a scroll bar would take some of the width
# A frame of the width shows the page as a window of that width would. Cut is what lies outside of the frame, what is
# larger than the element around it, and what has to be scrolled sideways to be seen.
MEASURE = """
<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe style="border:0;width:%dpx;height:%dpx"
srcdoc="%s"></iframe><pre id="cut"></pre><script>
document.querySelector("iframe").onload = (event) => {
  const page = event.target.contentDocument, width = page.documentElement.clientWidth, cut = [];
  const height = Math.ceil(page.body.getBoundingClientRect().bottom) + 8;
  for (const element of page.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect(), name = element.tagName + "." + element.getAttribute("class");
    if (!box.width) continue;
    if (box.right > width + 1 || box.left < -1) cut.push(name + " reaches " + Math.round(box.right) + " of " + width);
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth && !element.closest("svg"))
      cut.push(name + " scrolls " + element.scrollWidth + " in " + element.clientWidth);
    const text = element.tagName === "text" ? element.closest("svg").getBoundingClientRect() : null;
    if (text && (box.right > text.right + 2 || box.left < text.left - 2)) cut.push("text " + element.textContent);
  }
  document.getElementById("cut").textContent = JSON.stringify({width, cut, height});
};
</script>
"""


@dataclass(frozen=True)
class Browser:
    """Chromium without a window."""

    program: str
    profile: Path

    def run(self, *options: str) -> "subprocess.CompletedProcess[str]":
        quiet = ("gpu", "quic", "background-networking", "component-update", "sync", "extensions")
        basic = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
        command = [self.program, *basic, f"--user-data-dir={self.profile}", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"NOT PROVED: the HTML report was seen in no browser, there is none of {', '.join(names)}")
    return Browser(program, tmp_path / "profile")


def cut_parts(browser: Browser, page: Path, width: int) -> list[str]:
    """The parts of a page that are cut at a width."""
    source = page.read_text(encoding="utf-8").replace("default-src 'none'", "script-src 'none'")
    host = page.with_suffix(f".{width}.html")
    host.write_text(MEASURE % (width, TALL, html.escape(source)), encoding="utf-8")
    dumped = browser.run("--virtual-time-budget=5000", "--dump-dom", host.as_uri()).stdout
    measured = re.search(r'<pre id="cut">(.*?)</pre>', dumped, re.DOTALL)
    assert measured is not None, dumped[-2000:]
    answer = json.loads(html.unescape(measured[1]))
    assert answer["width"] == width, answer
    if folder := os.environ.get("PACKPROOF_PICTURES"):
        picture = Path(folder).resolve() / f"{page.stem}-{width}.png"
        tall = host.with_suffix(".tall.html")
        tall.write_text(MEASURE % (width, answer["height"], html.escape(source)), encoding="utf-8")
        browser.run(f"--window-size={max(width, 500)},{answer['height']}", f"--screenshot={picture}", tall.as_uri())
    return [str(part) for part in answer["cut"]]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_report_is_cut(browser: Browser, kind: str, tmp_path: Path) -> None:
    page = tmp_path / f"{kind}.html"
    target = f"{failing_kernels.__file__}:{kind}"
    options = ("--op", "causal_conv1d", "--profile", "quick", "--dtype", "fp32,bf16")
    done = packproof_in(tmp_path, "check", target, *options, "--html", str(page))
    assert done.returncode == 1, done.stdout + done.stderr
    for width in WIDTHS:
        assert cut_parts(browser, page, width) == [], width


@pytest.mark.parametrize("n_tokens", [1, 12, 64])
def test_nothing_of_a_long_map_is_cut(browser: Browser, n_tokens: int, tmp_path: Path) -> None:
    page = tmp_path / f"long_{n_tokens}.html"
    page.write_text(long_failure(n_tokens), encoding="utf-8")
    for width in WIDTHS:
        assert cut_parts(browser, page, width) == [], width


def test_what_is_cut_is_seen(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text(
        "<!doctype html><body><div style='overflow:auto'><p style='width:700px'>x</p></div>", encoding="utf-8"
    )
    assert cut_parts(browser, page, 1280) == []
    assert len(cut_parts(browser, page, 390)) == 2


def test_a_browser_logs_nothing(browser: Browser, tmp_path: Path) -> None:
    """The page loads, and nothing is blocked or logged: console messages go to stderr as CONSOLE."""
    file = tmp_path / "page.html"
    file.write_text(rendered(passed("reference"), failed(LEAK)), encoding="utf-8")
    done = browser.run("--enable-logging=stderr", "--dump-dom", file.as_uri())
    assert "CONSOLE" not in done.stderr
    assert 'id="scoreboard"' in done.stdout
