"""Durations in the form that users write: 60, 60s, 2m, 1m30s, 1h."""

import re

from packproof.refs.errors import UsageError

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds(text: str, option: str) -> float:
    """The seconds of a duration. Raises UsageError for other text, and for zero."""
    match = _DURATION.fullmatch(text.strip().lower())
    hours, minutes, remaining_seconds = (float(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + remaining_seconds
    if total <= 0:
        raise UsageError(f"{option}: {text!r} is no duration; expected one above zero, such as 60, 90s, 2m or 1h30m")
    return total
