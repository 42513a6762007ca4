"""Texts of messages: singular and plural, the indefinite article, and characters that a terminal may show."""

import re

# control characters except tab and newline, bidirectional controls, lone surrogates, noncharacters
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def plural(count: int, noun: str) -> str:
    """A count with its noun, pluralized: "1 axis", "2 axes", "0 query heads", "3 channels per head"."""
    if count == 1:
        return f"1 {noun}"
    head, per, unit = noun.partition(" per ")
    if head.endswith("xis"):
        return f"{count} {head[:-2]}es{per}{unit}"
    ies = head.endswith("y") and head[-2:-1] not in "aeiou"
    return f"{count} {head[:-1] + 'ies' if ies else head + 's'}{per}{unit}"


def article(noun: str) -> str:
    """The noun after "a" or "an"."""
    return f"{'an' if noun[:1].lower() in set('aeiou') or noun == 'ndarray' else 'a'} {noun}"


def kind(value: object) -> str:
    """The type of a value with its article, for a message: "None", "a list", "an ndarray"."""
    return "None" if value is None else article(type(value).__name__)


def printable(text: str) -> str:
    """The text with invalid and terminal-control characters escaped as in Python."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
