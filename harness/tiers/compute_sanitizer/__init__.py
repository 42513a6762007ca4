"""The sanitizer tier: golden cases of a kernel under NVIDIA's compute-sanitizer."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.tiers.compute_sanitizer.cell import require_sanitizer, sanitize_cell

__all__ = ["require_sanitizer", "sanitize_cell"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.tiers.compute_sanitizer.cell": ("require_sanitizer", "sanitize_cell"),
    },
)
