"""docs/adapters.md runs: its kernels pass in the conventions that it shows, and its declarations are valid."""

import re
from pathlib import Path

import pytest

from tests.test_docs import PYTHON, ROOT, check, write_files

PAGE = "docs/adapters.md"
LAWS = "reference,packing,isolation,permutation,determinism,memory,strides,metadata"  # torch would compile for seconds


@pytest.mark.parametrize("file", ["heads_first.py", "varlen.py", "padded.py", "thd.py", "in_place.py"])
def test_every_convention_of_the_page_passes(file: str, tmp_path: Path) -> None:
    source = write_files(PAGE, tmp_path)[file]
    [name] = re.findall(r"^(\w+) = adapt\(", source, re.M)
    done = check(tmp_path, f"{file}:{name}", "--property", LAWS, "--dtype", "fp32")
    assert done.returncode == 0, done.stdout


def test_the_declarations_of_the_page_are_valid() -> None:
    for source in PYTHON.findall((ROOT / PAGE).read_text()):
        exec(source, {})
