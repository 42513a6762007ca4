"""The site: `make docs`. Its sources are the pages as they lie in a checkout, so that their links are right in both."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import api

project = "packproof"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/notes/*.md",
    "docs/peers/*.md",
    "docs/upstream/*.md",
]
exclude_patterns = [".*", "build", "src"]  # not to walk them
myst_heading_anchors = 3
html_theme = "furo"
html_title = "packproof"
html_copy_source = False
html_show_copyright = False
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
nitpick_ignore_regex = [("py:class", r"(?!packproof\.).*")]  # types of torch and of Python, which are not on the site


def setup(app: Any) -> None:
    app.connect("source-read", _with_entries)


def _with_entries(_: Any, page: str, source: list[str]) -> None:
    if page == "docs/api":
        source[0] = api.fill(source[0])
    elif page == "docs/index":
        source[0] += menu(source[0])
    elif page.startswith(("docs/notes/", "docs/upstream/")):
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"  # pages link to it, the menu does not


def menu(index: str) -> str:
    """The site's menu, as hidden tables of contents: a caption for each heading, an entry for each item below it."""
    tables = []
    for caption, items in re.findall(r"^## (.+)\n\n((?:- .*\n|  .*\n)+)", index, re.M):
        entries = re.findall(r"^- \[(.+?)\]\((\S+)\.md\)", items, re.M)
        lines = "\n".join(f"{title} <{page}>" for title, page in entries)
        tables.append(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n")
    return "".join(tables)
