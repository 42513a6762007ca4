"""Mamba, Mamba-2 and attention blocks over packed sequences, with mamba-ssm's parameters, and exact references."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.layers.attention import AttentionBlock
    from packproof.layers.mamba import MambaBlock
    from packproof.layers.mamba2 import Mamba2Block
    from packproof.layers.reference import attention_reference, mamba2_reference, mamba_reference

__all__ = [
    "AttentionBlock",
    "Mamba2Block",
    "MambaBlock",
    "attention_reference",
    "mamba2_reference",
    "mamba_reference",
]

export(
    sys.modules[__name__],
    {
        "packproof.layers.attention": ("AttentionBlock",),
        "packproof.layers.mamba": ("MambaBlock",),
        "packproof.layers.mamba2": ("Mamba2Block",),
        "packproof.layers.reference": ("attention_reference", "mamba2_reference", "mamba_reference"),
    },
)
