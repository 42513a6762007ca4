"""A kernel under test: its calls, and the comparison of their results by the budget."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.judgement.comparison import Comparison, RowMap, record_comparisons
    from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation, judge_case

__all__ = ["Comparison", "KernelUnderTest", "RowMap", "first_violation", "judge_case", "record_comparisons"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.judgement.comparison": ("Comparison", "RowMap", "record_comparisons"),
        "packproof.properties.judgement.kernel_under_test": ("KernelUnderTest", "first_violation", "judge_case"),
    },
)
