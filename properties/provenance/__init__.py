"""Who computed, as laws of a kernel that no plan has: `check` judges them beside its cells."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.provenance.law import OWN_KERNELS, PROVENANCE

__all__ = ["OWN_KERNELS", "PROVENANCE"]

export(sys.modules[__name__], {"packproof.properties.provenance.law": ("OWN_KERNELS", "PROVENANCE")})
