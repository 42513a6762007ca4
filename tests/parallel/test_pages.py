"""docs/context_parallel.md and docs/scaling.md run, and print what they show."""

import re
from pathlib import Path

import pytest

import packproof
from tests.test_docs import OUTPUT, PYTHON, ROOT, blotted, check, failure_block, write_files

PAGE = "docs/context_parallel.md"


def test_the_implementation_of_the_page_fails_as_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(PAGE, tmp_path)
    done = check(tmp_path, "halo.py:conv", "--property", "partition", "--dtype", "fp32")
    [shown] = [text for text in OUTPUT.findall((ROOT / PAGE).read_text()) if "FAILED" in text]
    assert failure_block(done.stdout) == blotted(shown.rstrip())
    [replay] = re.findall(r"packproof replay (\S+)", done.stdout)
    monkeypatch.chdir(tmp_path)
    assert "on rank 2: got" in packproof.replay(replay).text


@pytest.mark.parametrize("page", [PAGE])
def test_the_other_examples_run(page: str) -> None:
    text = (ROOT / page).read_text()
    blocks = [block for block in PYTHON.findall(text) if not block.startswith('"""')]
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert blocks
