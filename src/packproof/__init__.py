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
    from packproof.debug.diff import Diff, diff
    from packproof.debug.dot_product import dot_product_test
    from packproof.debug.gradcheck import gradcheck
    from packproof.harness.check.check import check
    from packproof.harness.check.replay import ReplayOutcome
    from packproof.harness.report.events import Verdict
    from packproof.harness.report.failed import CheckFailed
    from packproof.models.check import check_module
    from packproof.models.conventions import Convention
    from packproof.models.guard import guard
    from packproof.models.replay import replay
    from packproof.properties.bounds.magnitude import magnitude
    from packproof.properties.cases.case import Case
    from packproof.properties.cases.domain import Domain
    from packproof.properties.declaration import kernel
    from packproof.properties.laws.property import Property
    from packproof.properties.op import Op
    from packproof.properties.promises import Promises
    from packproof.refs.packing import PackLayout, pack, unpack

__all__ = [
    "ArgumentError",
    "Case",
    "CheckFailed",
    "Convention",
    "Diff",
    "Domain",
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
    "adapters",
    "check",
    "check_module",
    "diff",
    "dot_product_test",
    "gradcheck",
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
    "packproof.harness.check.check": ("check",),
    "packproof.debug.diff": ("Diff", "diff"),
    "packproof.debug.dot_product": ("dot_product_test",),
    "packproof.debug.gradcheck": ("gradcheck",),
    "packproof.harness.check.replay": ("ReplayOutcome",),
    "packproof.models.check": ("check_module",),
    "packproof.models.conventions": ("Convention",),
    "packproof.models.guard": ("guard",),
    "packproof.models.replay": ("replay",),
    "packproof.harness.report.events": ("Verdict",),
    "packproof.harness.report.failed": ("CheckFailed",),
    "packproof.properties.declaration": ("kernel",),
    "packproof.properties.bounds.magnitude": ("magnitude",),
    "packproof.properties.cases.case": ("Case",),
    "packproof.properties.cases.domain": ("Domain",),
    "packproof.properties.op": ("Op",),
    "packproof.properties.promises": ("Promises",),
    "packproof.properties.laws.property": ("Property",),
    "packproof.base.errors": ("ArgumentError", "LayoutError", "PackproofError", "UsageError"),
    "packproof.refs.packing": ("PackLayout", "pack", "unpack"),
}


export(sys.modules[__name__], _HOMES)
