"""Ops as data: the declaration of an op, those of packproof, and their floating-point operations."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.ops.catalogue import CAUSAL_CONV1D, OPS, find_op
    from packproof.properties.ops.flops import Flops
    from packproof.properties.ops.op import Op
    from packproof.properties.ops.reductions import index_of_largest, shares

__all__ = ["CAUSAL_CONV1D", "OPS", "Flops", "Op", "find_op", "index_of_largest", "shares"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.ops.catalogue": ("CAUSAL_CONV1D", "OPS", "find_op"),
        "packproof.properties.ops.flops": ("Flops",),
        "packproof.properties.ops.op": ("Op",),
        "packproof.properties.ops.reductions": ("index_of_largest", "shares"),
    },
)
