"""The measurements at the smallest case of a failure, and error maps and leak maps as text."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.report.maps.measurements import (
        ErrorMap,
        Evidence,
        Layout,
        LeakCell,
        LeakMap,
        MapRow,
        TensorRow,
        WorstElement,
        compact,
    )
    from packproof.harness.report.maps.text import evidence_lines

__all__ = [
    "ErrorMap",
    "Evidence",
    "Layout",
    "LeakCell",
    "LeakMap",
    "MapRow",
    "TensorRow",
    "WorstElement",
    "compact",
    "evidence_lines",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.report.maps.measurements": (
            "ErrorMap",
            "Evidence",
            "Layout",
            "LeakCell",
            "LeakMap",
            "MapRow",
            "TensorRow",
            "WorstElement",
            "compact",
        ),
        "packproof.harness.report.maps.text": ("evidence_lines",),
    },
)
