"""Text that any terminal, document and file can hold, whatever a kernel put into it."""

import re

# control characters but tab and newline, those that reverse the direction of writing, lone surrogates, non-characters
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text with the characters that are none, or that could repaint a terminal, as Python escapes them."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
