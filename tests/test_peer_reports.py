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
