"""The properties of kernels over packed sequences, and their parts: ops as data, layouts and the error budget.

It exports the names for writing a property of your own; docs/properties.md has an example.
"""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.cases.case import Case
    from packproof.properties.cases.sample import Sample
    from packproof.properties.comparison import Origin
    from packproof.properties.kernel_under_test import KernelUnderTest
    from packproof.properties.tensor_key import TensorKey
    from packproof.properties.violation import Violation

__all__ = ["Case", "KernelUnderTest", "Origin", "Sample", "TensorKey", "Violation"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.cases.case": ("Case",),
        "packproof.properties.cases.sample": ("Sample",),
        "packproof.properties.comparison": ("Origin",),
        "packproof.properties.kernel_under_test": ("KernelUnderTest",),
        "packproof.properties.tensor_key": ("TensorKey",),
        "packproof.properties.violation": ("Violation",),
    },
)
