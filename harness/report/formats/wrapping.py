"""Long lines on a terminal, broken between words: the terminal itself would break them inside of words."""

import textwrap

from rich.text import Text

_COMMANDS = ("packproof ", "adapt(")  # copied from the screen as one line


def wrapped(text: Text, width: int) -> Text:
    """The text with lines of at most this width, where words allow it. The rest of a line is indented further.

    The style of the whole text stays. A styled span stays if it ends before the first break. After a break its position
    would be wrong, because a break adds characters.
    """
    plain = "\n".join(_wrapped_line(line, width) for line in text.plain.split("\n"))
    pairs = zip(plain, text.plain, strict=False)
    first_break = next((i for i, (new, old) in enumerate(pairs) if new != old), len(plain))
    return Text(plain, style=text.style, spans=[span for span in text.spans if span.end <= first_break])


def _wrapped_line(line: str, width: int) -> str:
    if len(line) <= width or line.lstrip().startswith(_COMMANDS):
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
