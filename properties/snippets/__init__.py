"""Lines of Python for the author of a kernel to paste: its declaration, and an adapter for other names."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.snippets.pasted_lines import PLACEHOLDER, PastedLines, changed_declaration, dict_text
    from packproof.properties.snippets.suggested_adapter import suggested_adapter

__all__ = ["PLACEHOLDER", "PastedLines", "changed_declaration", "dict_text", "suggested_adapter"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.snippets.pasted_lines": (
            "PLACEHOLDER",
            "PastedLines",
            "changed_declaration",
            "dict_text",
        ),
        "packproof.properties.snippets.suggested_adapter": ("suggested_adapter",),
    },
)
