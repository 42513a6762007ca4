"""The properties of kernels over packed sequences, and their parts: ops as data, layouts and the error budget.

It exports the names for writing a property of your own; docs/properties.md has an example.
"""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.calling.tensor_key import TensorKey
    from packproof.properties.cases.case import Case
    from packproof.properties.cases.sample import Sample
    from packproof.properties.judgement.comparison import Origin
    from packproof.properties.judgement.kernel_under_test import KernelUnderTest
    from packproof.properties.laws.violation import Violation

__all__ = ["Case", "KernelUnderTest", "Origin", "Sample", "TensorKey", "Violation"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.calling.tensor_key": ("TensorKey",),
        "packproof.properties.cases.case": ("Case",),
        "packproof.properties.cases.sample": ("Sample",),
        "packproof.properties.judgement.comparison": ("Origin",),
        "packproof.properties.judgement.kernel_under_test": ("KernelUnderTest",),
        "packproof.properties.laws.violation": ("Violation",),
    },
)
