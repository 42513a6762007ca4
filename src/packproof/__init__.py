"""Proves, by test, that kernels for packed variable-length sequences compute each sequence as if it were alone.

Names are imported when they are first used: `import packproof` costs nothing, and needs neither triton nor hypothesis.
"""

import sys
from typing import TYPE_CHECKING

from packproof import adapters, kernels, layers, packs, parallel, refs
from packproof.base.lazy import export
from packproof.kernels import namespace as _namespace  # noqa: F401  (gives kernels/, a folder without __init__, its names)
from packproof.version import __version__

if TYPE_CHECKING:
    from packproof.base.errors import ArgumentError, LayoutError, PackproofError, UsageError
    from packproof.debug import Accuracy, Diff, accuracy, diff, dot_product_test, gradcheck
    from packproof.grading import Grade, GradeOptions, GradeRun, grade
    from packproof.harness.check import ReplayOutcome, check
    from packproof.harness.report import CheckFailed, Verdict
    from packproof.models import Convention, check_module, guard, replay
    from packproof.packers import check_packs
    from packproof.properties.bounds import magnitude
    from packproof.properties.cases import Case, Domain
    from packproof.properties.declarations import Promises, kernel
    from packproof.properties.laws import Property
    from packproof.properties.ops import Op
    from packproof.refs.packing import PackLayout, pack, unpack

__all__ = [
    "Accuracy",
    "ArgumentError",
    "Case",
    "CheckFailed",
    "Convention",
    "Diff",
    "Domain",
    "Grade",
    "GradeOptions",
    "GradeRun",
    "LayoutError",
    "Op",
    "PackLayout",
    "PackproofError",
    "Promises",
    "Property",
    "ReplayOutcome",
    "UsageError",
    "Verdict",
    "__version__",
    "accuracy",
    "adapters",
    "check",
    "check_module",
    "check_packs",
    "diff",
    "dot_product_test",
    "gradcheck",
    "grade",
    "guard",
    "kernel",
    "kernels",
    "layers",
    "magnitude",
    "pack",
    "packs",
    "parallel",
    "refs",
    "replay",
    "unpack",
]

_HOMES = {
    "packproof.harness.check": ("ReplayOutcome", "check"),
    "packproof.debug": ("Accuracy", "Diff", "accuracy", "diff", "dot_product_test", "gradcheck"),
    "packproof.grading": ("Grade", "GradeOptions", "GradeRun", "grade"),
    "packproof.models": ("Convention", "check_module", "guard", "replay"),
    "packproof.packers": ("check_packs",),
    "packproof.harness.report": ("CheckFailed", "Verdict"),
    "packproof.properties.declarations": ("Promises", "kernel"),
    "packproof.properties.bounds": ("magnitude",),
    "packproof.properties.cases": ("Case", "Domain"),
    "packproof.properties.ops": ("Op",),
    "packproof.properties.laws": ("Property",),
    "packproof.base.errors": ("ArgumentError", "LayoutError", "PackproofError", "UsageError"),
    "packproof.refs.packing": ("PackLayout", "pack", "unpack"),
}


export(sys.modules[__name__], _HOMES)
