"""Each finding in a third-party kernel has a report that its maintainers could take as it is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(ROOT.glob("docs/peers/*.py"))


def report(script: Path) -> str:
    return script.with_suffix(".md").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_report_has_what_a_maintainer_needs(script: Path) -> None:
    text = report(script)
    assert re.match(r"# .+\n", text)
    for part in ("**In training**: ", "**Environment**: ", "## Script", "## Cause", "## Fix"):
        assert text.count(part) == 1, part
    assert f"```python\n{script.read_text().rstrip()}\n```" in text
    environment = text[text.index("**Environment**") :].partition("\n\n")[0]
    assert re.search(r"\d\.\d", environment)
    assert re.search(r"\d{4}-\d\d-\d\d", environment)
    cause = text[text.index("## Cause") : text.index("## Fix")]
    assert re.search(r"`[\w/.]+\.(py|cu|cuh)(:\d+)?`", cause), "a file of their code"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_page_has_the_report_and_the_sentence_on_training(script: Path) -> None:
    page = (ROOT / "docs/peers.md").read_text()
    assert page.count(f"(peers/{script.stem}.md)") == 1
    assert "packproof" not in script.read_text()


_OTHERS = {ROOT / f"docs/upstream/{name}.md" for name in ("index", "flashinfer_fuzz")}
UPSTREAM = sorted({*ROOT.glob("docs/upstream/*.md")} - _OTHERS)


@pytest.mark.parametrize("page", UPSTREAM, ids=lambda page: page.stem)
def test_an_upstream_page_has_what_a_maintainer_needs(page: Path) -> None:
    """The repair is in words, the test is one file without packproof, and it failed before it passed."""
    text = page.read_text()
    for part in ("**For a user**: ", "**State**: ", "## Smallest call", "## Cause", "## Repair", "## Test"):
        assert text.count(part) == 1, part
    assert re.search(r"`[\w/.]+\.py`, ", text[text.index("## Cause") :]), "a file of their code, and a symbol"
    repair, tried = text[text.index("## Repair") :].split("## Test")
    assert "```" not in repair
    assert f"tests/test_{page.stem}.py" in tried
    assert re.search(r"\d failed.*\n(.*\n)*?\| with the repair \| `[^`]*\d passed(?!.*failed)", tried)
    index = (ROOT / "docs/upstream/index.md").read_text()
    assert index.count(f"({page.name})") == index.count(f"(tests/test_{page.stem}.py)") == 1


def test_a_test_for_upstream_needs_no_packproof() -> None:
    tests = [path for path in ROOT.glob("docs/upstream/tests/test_*.py") if path.stem != "test_flashinfer_fuzz"]
    assert {path.stem for path in tests} == {f"test_{page.stem}" for page in UPSTREAM}
    assert [path.name for path in tests if "import packproof" in path.read_text()] == []
