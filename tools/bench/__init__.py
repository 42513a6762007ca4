"""Timings beside other implementations: kernels, packs cut over ranks, whole models, packing and fp8."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.bench.fp8 import FP8_TOKENS, fp8_error_lines
    from packproof.bench.packing import PACK_CAPACITY, packer_lines, sample_lengths

__all__ = ["FP8_TOKENS", "PACK_CAPACITY", "fp8_error_lines", "packer_lines", "sample_lengths"]

export(
    sys.modules[__name__],
    {
        "packproof.bench.fp8": ("FP8_TOKENS", "fp8_error_lines"),
        "packproof.bench.packing": ("PACK_CAPACITY", "packer_lines", "sample_lengths"),
    },
)
