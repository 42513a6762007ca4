"""The check of words sees them in prose and in names, and leaves their other senses alone."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("words", ROOT / ".ci/words.py")
assert SPEC is not None
assert SPEC.loader is not None
words = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(words)


@pytest.mark.parametrize(
    "text",
    [
        "It convicts a kernel.",
        "def test_a_right_kernel_passes() -> None:",
        "rows behind the last sequence",
        "Nobody reads it.",
        "over 1 cells",
    ],
)
def test_a_word_is_seen(text: str) -> None:
    assert [line for line, _, _ in words.found(f"fine\n{text}\n")] == [2]


@pytest.mark.parametrize(
    "text", ["the right side", "rotates and turns each pair", "T + 1 tokens", "21 cells", "a wrong gradient"]
)
def test_other_senses_stay(text: str) -> None:
    assert words.found(text) == []


def test_what_is_allowed_exists() -> None:
    assert [name for name in words.ALLOWED if not (ROOT / name).exists()] == []
