"""No link between the pages is dead: each leads to a file, and to a heading in it where it names one."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/notes/*.md")})
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *)(```+).*?^\1\2`*$|`[^`\n]+`", re.S | re.M)
HEADING = re.compile(r"^#{1,3} (.+)$", re.M)  # as many levels as the site makes anchors for


def prose(page: Path) -> str:
    """A page without its code."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    named = Counter[str]()
    found = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{named[slug]}" if named[slug] else slug)
        named[slug] += 1
    return found


def dead(page: Path, text: str) -> list[str]:
    """The links of a text on that page that lead nowhere."""
    wrong = []
    for link in LINK.findall(text):
        file, _, anchor = link.partition("#")
        if ":" in file:
            continue
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_dead(page: Path) -> None:
    assert dead(page, prose(page)) == []


@pytest.mark.parametrize(
    "link", ["no_page.md", "check.md#no-heading", "#no-heading", "../README.md#what-a-pass-means-not", "peers/none.py"]
)
def test_a_dead_link_is_detected(link: str) -> None:
    page = ROOT / "docs/ci.md"
    assert dead(page, f"see [a page\nwith `code`]({link})") == [link]
    assert dead(page, "see [one](check.md#promises), [two](../README.md#what-a-pass-means) and [three](#options)") == []


def test_pages_have_links() -> None:
    assert sum(len(LINK.findall(prose(page))) for page in PAGES) > 150
