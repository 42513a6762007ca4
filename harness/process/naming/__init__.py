"""The names of kernels: targets as users write them, and the address by which another process imports a function."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.process.naming.address import address, kernel_address
    from packproof.harness.process.naming.location import Location
    from packproof.harness.process.naming.source_names import canonical_target, missing_target_reason

__all__ = ["Location", "address", "canonical_target", "kernel_address", "missing_target_reason"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.process.naming.address": (
            "address",
            "kernel_address",
        ),
        "packproof.harness.process.naming.location": ("Location",),
        "packproof.harness.process.naming.source_names": (
            "canonical_target",
            "missing_target_reason",
        ),
    },
)
