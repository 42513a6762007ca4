"""Proves, by test, that kernels for packed variable-length sequences compute each sequence as if it were alone.

Names are imported when they are first used: `import packproof` costs nothing, and needs neither triton nor hypothesis.
"""

import sys
from typing import TYPE_CHECKING, Any

from packproof import adapters, kernels, layers, packs, parallel, refs
from packproof.refs.lazy import LazyPackage, export
from packproof.version import __version__

if TYPE_CHECKING:
    from packproof.harness.debug.diff import Diff, diff
    from packproof.harness.debug.dot_product import dot_product_test
    from packproof.harness.debug.gradcheck import gradcheck
    from packproof.harness.engine.check import check
    from packproof.harness.engine.replay import ReplayOutcome
    from packproof.harness.modules.check import check_module
    from packproof.harness.modules.conventions import Convention
    from packproof.harness.modules.guard import guard
    from packproof.harness.modules.replay import replay
    from packproof.harness.results.events import Verdict
    from packproof.harness.results.failed import CheckFailed
    from packproof.properties.bounds.magnitude import magnitude
    from packproof.properties.cases.case import Case
    from packproof.properties.cases.domain import Domain
    from packproof.properties.declaration import kernel
    from packproof.properties.laws.property import Property
    from packproof.properties.op import Op
    from packproof.properties.promises import Promises
    from packproof.refs.errors import ArgumentError, LayoutError, PackproofError, UsageError
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
    "packproof.harness.engine.check": ("check",),
    "packproof.harness.debug.diff": ("Diff", "diff"),
    "packproof.harness.debug.dot_product": ("dot_product_test",),
    "packproof.harness.debug.gradcheck": ("gradcheck",),
    "packproof.harness.engine.replay": ("ReplayOutcome",),
    "packproof.harness.modules.check": ("check_module",),
    "packproof.harness.modules.conventions": ("Convention",),
    "packproof.harness.modules.guard": ("guard",),
    "packproof.harness.modules.replay": ("replay",),
    "packproof.harness.results.events": ("Verdict",),
    "packproof.harness.results.failed": ("CheckFailed",),
    "packproof.properties.declaration": ("kernel",),
    "packproof.properties.bounds.magnitude": ("magnitude",),
    "packproof.properties.cases.case": ("Case",),
    "packproof.properties.cases.domain": ("Domain",),
    "packproof.properties.op": ("Op",),
    "packproof.properties.promises": ("Promises",),
    "packproof.properties.laws.property": ("Property",),
    "packproof.refs.errors": ("ArgumentError", "LayoutError", "PackproofError", "UsageError"),
    "packproof.refs.packing": ("PackLayout", "pack", "unpack"),
}
_KERNELS = {
    "packproof.kernels.attention": ("attention",),
    "packproof.kernels.causal_conv1d": ("causal_conv1d",),
    "packproof.kernels.hadamard": ("hadamard",),
    "packproof.kernels.linear_attention": ("linear_attention", "retention", "simple_gla"),
    "packproof.kernels.quantize_fp8": ("quantize_fp8", "round_fp8"),
    "packproof.kernels.rope": ("rope", "rope_qk"),
    "packproof.kernels.rope_hadamard": ("rope_hadamard",),
    "packproof.kernels.selective_scan": ("selective_scan",),
    "packproof.kernels.ssd": ("ssd",),
}


class _Kernels(LazyPackage):
    """The folder of kernels, which has no __init__ of its own."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
            way_out = f"install it, or use packproof.refs.{name}"
            raise ImportError(f"packproof.kernels.{name} needs triton: {way_out}") from error

    @staticmethod
    def install_interpreter() -> None:
        """Repair Triton's interpreter, once: as shipped it computes other values than a GPU. Raises PackproofError."""
        from packproof.harness.interpreter.repair import install  # noqa: PLC0415  (needs triton)

        install()


export(sys.modules[__name__], _HOMES)
export(kernels, _KERNELS, _Kernels)
kernels.__doc__ = "Fast packed kernels, with the names and signatures of packproof.refs."
