"""Debugging tools that run a kernel in this process, diff and gradcheck; and an op explained as data."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.debug.accuracy import Accuracy, accuracy
    from packproof.debug.diff import Diff, diff
    from packproof.debug.dot_product import dot_product_test
    from packproof.debug.gradcheck import gradcheck
    from packproof.debug.op_record import op_record, op_text

__all__ = ["Accuracy", "Diff", "accuracy", "diff", "dot_product_test", "gradcheck", "op_record", "op_text"]

export(
    sys.modules[__name__],
    {
        "packproof.debug.accuracy": ("Accuracy", "accuracy"),
        "packproof.debug.diff": ("Diff", "diff"),
        "packproof.debug.dot_product": ("dot_product_test",),
        "packproof.debug.gradcheck": ("gradcheck",),
        "packproof.debug.op_record": ("op_record", "op_text"),
    },
)
