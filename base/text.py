"""Escaping of text from a kernel, for any terminal, document or file."""

import re

# control characters except tab and newline, bidirectional controls, lone surrogates, noncharacters
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text with invalid and terminal-control characters escaped as in Python."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
