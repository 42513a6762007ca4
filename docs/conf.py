"""The site: `make docs`. Its sources are the pages as they lie in a checkout, so that their links are right in both."""

project = "packproof"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md"]
exclude_patterns = [".*", "build", "src"]  # not to walk them
myst_heading_anchors = 3
html_theme = "furo"
html_title = "packproof"
html_copy_source = False
html_show_copyright = False
html_additional_pages = {"index": "start.html"}
templates_path = ["templates"]
