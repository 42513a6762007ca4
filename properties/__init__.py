"""What must hold of a kernel over packed sequences: ops as data, layouts, the error budget and the properties.

The names are those that a property of your own needs: docs/properties.md has one.
"""

import sys
from typing import TYPE_CHECKING

from packproof.refs.lazy import export

if TYPE_CHECKING:
    from packproof.properties.cases.case import Case
    from packproof.properties.cases.sample import Sample
    from packproof.properties.kernel_under_test import KernelUnderTest, Origin
    from packproof.properties.tensor_key import TensorKey
    from packproof.properties.violation import Violation

__all__ = ["Case", "KernelUnderTest", "Origin", "Sample", "TensorKey", "Violation"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.cases.case": ("Case",),
        "packproof.properties.cases.sample": ("Sample",),
        "packproof.properties.kernel_under_test": ("KernelUnderTest", "Origin"),
        "packproof.properties.tensor_key": ("TensorKey",),
        "packproof.properties.violation": ("Violation",),
    },
)
