"""Cases past thresholds: the constants of a kernel's source, and powers of two."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.thresholds.cases import axes_of, threshold_cases
    from packproof.properties.thresholds.reach import CHANNELS, Crossed, Reach, counts

__all__ = ["CHANNELS", "Crossed", "Reach", "axes_of", "counts", "threshold_cases"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.thresholds.cases": ("axes_of", "threshold_cases"),
        "packproof.properties.thresholds.reach": ("CHANNELS", "Crossed", "Reach", "counts"),
    },
)
