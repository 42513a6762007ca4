"""Mamba and Mamba-2 blocks over packed sequences, with the parameters of mamba-ssm, and their exact references."""

import sys
from typing import TYPE_CHECKING

from packproof.refs.lazy import export

if TYPE_CHECKING:
    from packproof.layers.mamba import MambaBlock
    from packproof.layers.mamba2 import Mamba2Block
    from packproof.layers.reference import mamba2_reference, mamba_reference

__all__ = ["Mamba2Block", "MambaBlock", "mamba2_reference", "mamba_reference"]

export(
    sys.modules[__name__],
    {
        "packproof.layers.mamba": ("MambaBlock",),
        "packproof.layers.mamba2": ("Mamba2Block",),
        "packproof.layers.reference": ("mamba2_reference", "mamba_reference"),
    },
)
