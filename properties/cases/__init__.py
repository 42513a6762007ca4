"""The calls of a kernel: cases, their layouts, tensors and results, and the kernel's domain."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.cases.case import REGIME_DESCRIPTIONS, STRONG_GATES, Case, shorten
    from packproof.properties.cases.domain import GATE, Domain, optional_inputs, size_names
    from packproof.properties.cases.drawing import draw, dtype_of
    from packproof.properties.cases.fitting import MAX_AXIS_SIZE
    from packproof.properties.cases.layouts import BOUNDARY_CLASSES, KEY_CLASSES, Lengths
    from packproof.properties.cases.random_cases import random_cases
    from packproof.properties.cases.result_tensors import DETACHED
    from packproof.properties.cases.sample import Sample
    from packproof.properties.cases.space import Space, golden_case, golden_cases

__all__ = [
    "BOUNDARY_CLASSES",
    "DETACHED",
    "GATE",
    "KEY_CLASSES",
    "MAX_AXIS_SIZE",
    "REGIME_DESCRIPTIONS",
    "STRONG_GATES",
    "Case",
    "Domain",
    "Lengths",
    "Sample",
    "Space",
    "draw",
    "dtype_of",
    "golden_case",
    "golden_cases",
    "optional_inputs",
    "random_cases",
    "shorten",
    "size_names",
]

export(
    sys.modules[__name__],
    {
        "packproof.properties.cases.case": ("Case", "REGIME_DESCRIPTIONS", "STRONG_GATES", "shorten"),
        "packproof.properties.cases.domain": ("Domain", "GATE", "optional_inputs", "size_names"),
        "packproof.properties.cases.drawing": ("draw", "dtype_of"),
        "packproof.properties.cases.fitting": ("MAX_AXIS_SIZE",),
        "packproof.properties.cases.layouts": ("BOUNDARY_CLASSES", "KEY_CLASSES", "Lengths"),
        "packproof.properties.cases.result_tensors": ("DETACHED",),
        "packproof.properties.cases.sample": ("Sample",),
        "packproof.properties.cases.random_cases": ("random_cases",),
        "packproof.properties.cases.space": ("Space", "golden_case", "golden_cases"),
    },
)
