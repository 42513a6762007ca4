"""docs/security.md lists the rogues that are not defended against, as the data has them."""

import re
from pathlib import Path

from packproof.museum.rogues import entries

PAGE = Path(__file__).parent.parent / "docs/security.md"
LIST = re.compile(r"<!-- undefended rogues -->\n(.*?)<!-- end of list -->", re.S)


def test_rogues_that_are_not_defended_against_are_listed_with_their_reason() -> None:
    rows = [f"- **{r.id}, {r.title}.** {r.cheat} {r.undefended}\n" for r in entries().values() if r.undefended]
    assert rows
    assert LIST.findall(PAGE.read_text()) == ["".join(rows)], f"{PAGE.name} should list:\n{''.join(rows)}"
