"""Durations on the command line."""

import re

import pytest

from packproof.base.errors import UsageError
from packproof.base.names import parse_seconds
from packproof.cli import main


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("60", 60), ("60s", 60), ("2m", 120), ("1h30m", 5400), ("1m30s", 90), ("0.5", 0.5), (" 2M ", 120)],
)
def test_durations(text: str, wanted: float) -> None:
    assert parse_seconds(text, "--max-time") == wanted


@pytest.mark.parametrize("text", ["", "0", "0s", "s", "-1", "2x", "1 m", "1s30m", "inf", "nan", "soon"])
def test_text_that_is_no_duration(text: str) -> None:
    words = f"--max-time: {text!r} is no duration; expected one above zero, such as 60, 90s, 2m or 1h30m"
    with pytest.raises(UsageError, match=f"^{re.escape(words)}$"):
        parse_seconds(text, "--max-time")


def test_a_wrong_duration_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", "m:f", "--max-time", "soon"]) == 2
    assert "--max-time: 'soon' is no duration" in capsys.readouterr().err
