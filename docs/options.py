"""Writes the table of options in docs/check.md, from the fields of a request.

python docs/options.py
"""

import inspect
import re
from dataclasses import MISSING
from pathlib import Path

import packproof
from packproof.base.names import SWITCH, RequestOption
from packproof.harness.check import OPTIONS

PAGE = Path(__file__).with_name("check.md")
TABLE = re.compile(r"(?<=<!-- options -->\n).*?(?=<!-- end of options -->)", re.S)
HEAD = """| `packproof check` | Python | effect |
| --- | --- | --- |
"""


def row(name: str, option: RequestOption) -> str:
    """The line of an option."""
    default = "" if option.default in (None, MISSING, ()) or option.kind is SWITCH else f"  [default: {option.default}]"
    python = f"`{name}`" if name in inspect.signature(packproof.check).parameters else f"`{name}`, in a marker"
    flags = ", ".join(f"`{flag}`" for flag in option.flags)
    return f"| {flags} | {python} | {option.help}{default} |\n"


def page(text: str) -> str:
    """The page, with its table as the fields have it."""
    return TABLE.sub(lambda _: HEAD + "".join(row(name, option) for name, option in OPTIONS.items()), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
