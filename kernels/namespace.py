"""The names of the folder, which has no `__init__`: a checkout on `sys.path` would shadow another package `kernels`."""

import sys
from typing import Any

from packproof.base.lazy import LazyPackage, export

_KERNELS = {
    "packproof.kernels.attention": ("attention",),
    "packproof.kernels.causal_conv1d": ("causal_conv1d",),
    "packproof.kernels.grouped_mm": ("grouped_mm",),
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


_folder = sys.modules[__name__.rpartition(".")[0]]
export(_folder, _KERNELS, _Kernels)
_folder.__doc__ = "Fast packed kernels, with the names and signatures of packproof.refs."
