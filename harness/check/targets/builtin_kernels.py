"""packproof's own kernels, as targets of the check."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from packproof.base.signatures import SIGNATURES
from packproof.properties.declarations import DEFAULT_DTYPES, Declaration, Promises


@dataclass(frozen=True)
class BuiltinKernel:
    """A kernel of packproof.

    Its module holds variants(), PROMISES, and INTERPRETED: settings for the interpreter. Tiles are smaller there: tests
    small enough for the interpreter then cover several tiles.
    """

    op: str
    module: str
    function: str = ""
    """Name in the module; "" for the op's own name. An op with several implementations names the others here, and they
    run on a GPU only.
    """
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    instance_of: str = ""
    """The op whose kernels it launches, with the same compiled variants; "" for kernels of its own."""
    has_separate_fp16_path: bool = False
    """Whether fp16 takes a code path of its own, separate from all other dtypes."""

    @property
    def kernel_module(self) -> str:
        """The module whose kernels are compiled for it."""
        return BUILTIN_KERNELS[self.instance_of].module if self.instance_of else self.module

    @property
    def target(self) -> str:
        return f"{self.module}:{self.function or self.op}"

    def runs_on(self, device: str) -> bool:
        return device == "cuda" or not self.function

    def declaration(self, device: str) -> Declaration:
        """The kernel's promises on a device: "cuda", or "cpu" with the interpreter."""
        module = importlib.import_module(self.module)
        promises = module.PROMISES if device == "cuda" else {**module.PROMISES, **module.INTERPRETED}
        signature = SIGNATURES[self.op]
        return Declaration(
            op=self.op,
            promises=Promises(**promises),
            dtypes=self.dtypes,
            mixed=True,
            float32=tuple(sorted(signature.float32 | signature.tables)),
            narrow=tuple(sorted(signature.narrow)),
        )


_LINEAR = "packproof.kernels.linear_attention"
_DTYPES_WITH_FP64 = (*DEFAULT_DTYPES, "float64")

# the longest checks first, so that no core is left without work at the end
BUILTIN_KERNELS: Mapping[str, BuiltinKernel] = {
    "ssd": BuiltinKernel("ssd", "packproof.kernels.ssd"),
    "ssd_triton": BuiltinKernel("ssd", "packproof.kernels.ssd", "ssd_triton"),
    "simple_gla": BuiltinKernel("simple_gla", _LINEAR, instance_of="ssd"),
    "retention": BuiltinKernel("retention", _LINEAR, instance_of="ssd"),
    "linear_attention": BuiltinKernel("linear_attention", _LINEAR, instance_of="ssd"),
    "attention": BuiltinKernel("attention", "packproof.kernels.attention", has_separate_fp16_path=True),
    "selective_scan": BuiltinKernel("selective_scan", "packproof.kernels.selective_scan"),
    "selective_scan_triton": BuiltinKernel(
        "selective_scan", "packproof.kernels.selective_scan", "selective_scan_triton"
    ),
    "causal_conv1d": BuiltinKernel("causal_conv1d", "packproof.kernels.causal_conv1d", dtypes=_DTYPES_WITH_FP64),
    "causal_conv1d_triton": BuiltinKernel(
        "causal_conv1d", "packproof.kernels.causal_conv1d", "causal_conv1d_triton", _DTYPES_WITH_FP64
    ),
    "grouped_mm": BuiltinKernel("grouped_mm", "packproof.kernels.grouped_mm"),
    "rope": BuiltinKernel("rope", "packproof.kernels.rope", dtypes=_DTYPES_WITH_FP64),
    "hadamard": BuiltinKernel("hadamard", "packproof.kernels.hadamard"),
    "rope_hadamard": BuiltinKernel("rope_hadamard", "packproof.kernels.rope_hadamard"),
    "round_fp8": BuiltinKernel("round_fp8", "packproof.kernels.quantize_fp8"),
    "rope_qk": BuiltinKernel("rope_qk", "packproof.kernels.rope", dtypes=_DTYPES_WITH_FP64),
}
