"""The results of a check in words."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.report.wording.conclusions import limits_lines
    from packproof.harness.report.wording.results import (
        cell_name,
        cell_title,
        failure_text,
        failure_texts,
        headline,
        summary,
    )
    from packproof.harness.report.wording.terms import terms_clause

__all__ = [
    "cell_name",
    "cell_title",
    "failure_text",
    "failure_texts",
    "headline",
    "limits_lines",
    "summary",
    "terms_clause",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.report.wording.conclusions": ("limits_lines",),
        "packproof.harness.report.wording.results": (
            "cell_name",
            "cell_title",
            "failure_text",
            "failure_texts",
            "headline",
            "summary",
        ),
        "packproof.harness.report.wording.terms": ("terms_clause",),
    },
)
