"""The compile tier: every variant of a kernel, compiled ahead of time for real targets, without a GPU."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.tiers.compile.cell import compile_cells
    from packproof.harness.tiers.compile.variants import compile_variants

__all__ = ["compile_cells", "compile_variants"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.tiers.compile.cell": ("compile_cells",),
        "packproof.harness.tiers.compile.variants": ("compile_variants",),
    },
)
