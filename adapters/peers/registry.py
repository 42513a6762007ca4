"""Third-party kernels with an adapter in packproof, by name: `packproof check mamba_ssm:ssd`, `packproof peers`.

They are not dependencies: a missing package is one line in a report. The adapter of `package:function` is `function`
in `packproof.adapters.peers.package`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from packproof.base.errors import UsageError


@dataclass(frozen=True)
class Peer:
    """A third-party kernel."""

    name: str
    """Its name, as package:function."""
    op: str
    """The name of its op."""
    required_module: str
    """The module imported by its adapter."""
    distributions: tuple[str, ...]
    """The distributions with this module, the usual one first."""
    packed: bool = True
    """Whether it keeps sequences apart. If not, it is only timed."""
    cpu: str = "nothing"
    """The part that runs without a GPU: "nothing", "forward" or "all". Triton kernels are interpreted there."""
    sizes: str = ""
    """The sizes of the quick scoreboard on a GPU, as a domain, if each one compiles for seconds; "" for all sizes."""

    @property
    def module(self) -> str:
        return f"packproof.adapters.peers.{self.name.partition(':')[0]}"

    @property
    def function(self) -> str:
        return self.name.partition(":")[2]

    @property
    def installed(self) -> bool:
        return _is_installed(self.required_module)

    def require(self) -> None:
        """Raises UsageError unless it is installed."""
        if not self.installed:
            raise UsageError(
                f"{self.name}: module {self.required_module} is not installed; pip install {self.distributions[0]}, or "
                "name another target (packproof list shows them)"
            )

    def runs_on(self, device: str) -> bool:
        return device != "cpu" or self.cpu != "nothing"

    @property
    def version(self) -> str:
        """The installed version, or "unknown"."""
        from importlib import metadata  # noqa: PLC0415  (8 ms, and every command names the peers)

        for distribution in self.distributions:
            try:
                return metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
        return _version_in_source(self.required_module.partition(".")[0])


def _is_installed(module: str) -> bool:
    """Whether the module is installed. Unlike `find_spec`, it imports no parent package."""
    package, *submodules = module.split(".")
    spec = find_spec(package)
    for name in submodules:
        package = f"{package}.{name}"
        spec = PathFinder.find_spec(package, spec.submodule_search_locations or []) if spec else None
    return spec is not None


def _version_in_source(package: str) -> str:
    """`__version__` of a checkout on the path, read from the source. An import may need a GPU."""
    spec = find_spec(package)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return "unknown"
    match = re.search(r"^__version__\s*=\s*[\"']([^\"']+)", Path(spec.origin).read_text(encoding="utf-8"), re.M)
    return match[1] if match else "unknown"


_MAMBA = ("mamba-ssm",)
_CONV = ("causal-conv1d",)
_FLA = ("flash-linear-attention", "fla-core")
_FLASHINFER = ("flashinfer-python",)
_FLASH = ("flash-attn",)
_TORCH = ("torch",)
_TRANSFORMERS = ("transformers",)

_SIZES = {
    "causal_conv1d": "d == 16; w == 4",
    "selective_scan": "d == 16; n == 16; g == 1",
    "ssd": "h == 4; p == 16; n == 16; g == 1",
    "gated_delta_rule": "k == 32; p == 32",
    "kda": "k == 32; p == 32",
    "attention": "k == 32; v == 32",
    "cache_write": "k == 32",
    "loss": "nv == 64",
}
_CROSS_ENTROPIES = ("cross_entropy", "token_logprobs", "linear_cross_entropy")
_LOSSES = (
    ("liger_kernel", "liger_kernel", ("liger-kernel",), "all", _CROSS_ENTROPIES),
    ("fla", "fla", _FLA, "all", (*_CROSS_ENTROPIES, "kl_divergence")),
    ("cut_cross_entropy", "cut_cross_entropy", ("cut-cross-entropy",), "all", ("linear_cross_entropy",)),
    ("quack", "quack", ("quack-kernels",), "nothing", _CROSS_ENTROPIES),
    ("transformer_engine", "transformer_engine", ("transformer-engine",), "nothing", _CROSS_ENTROPIES[:2]),
)

PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("mamba_ssm:ssd", "ssd", "mamba_ssm", _MAMBA),
        Peer("mamba_ssm:selective_scan", "selective_scan", "mamba_ssm", _MAMBA),
        Peer("mamba_ssm:selective_scan_unpacked", "selective_scan", "mamba_ssm", _MAMBA, packed=False),
        Peer("mamba_ssm:ssd_update", "ssd_update", "mamba_ssm", _MAMBA),
        Peer("mamba_ssm:selective_scan_update", "selective_scan_update", "mamba_ssm", _MAMBA),
        Peer("causal_conv1d:causal_conv1d", "causal_conv1d", "causal_conv1d", _CONV),
        Peer("causal_conv1d:causal_conv1d_update", "causal_conv1d_update", "causal_conv1d", _CONV),
        Peer("fla:causal_conv1d", "causal_conv1d", "fla", _FLA, cpu="all"),
        Peer("fla:rope", "rope", "fla", _FLA, cpu="all"),
        Peer("fla:rope_qk", "rope_qk", "fla", _FLA, cpu="all"),
        Peer("fla:ssd", "ssd", "fla", _FLA),
        *(
            Peer(f"fla:{op}{form}", op, "fla", _FLA, cpu=cpu)
            for op in ("linear_attention", "simple_gla", "retention", "delta_rule", "gated_delta_rule", "kda")
            for form, cpu in (("", "nothing"), ("_recurrent", "all"))
        ),
        Peer("fla:kda_update", "kda_update", "fla", _FLA, cpu="all", sizes=_SIZES["kda"]),
        Peer("fla:kda_verify", "kda_verify", "fla", _FLA, cpu="all", sizes=_SIZES["kda"]),
        *(
            Peer(f"vllm:{op}_{step}", f"{op}_{step}", "vllm", ("vllm",), cpu="all", sizes=_SIZES[op])
            for step in ("update", "verify")
            for op in ("causal_conv1d", "selective_scan", "ssd", "gated_delta_rule")
        ),
        *(
            Peer(f"{package}:attention{form}", "attention", package, (package,), cpu="all", sizes=_SIZES["attention"])
            for package, form in (("vllm", ""), ("sglang", "_decode"), ("sglang", "_extend"))
        ),
        Peer(
            "sglang:gated_delta_rule_verify",
            "gated_delta_rule_verify",
            "sglang",
            ("sglang",),
            sizes=_SIZES["gated_delta_rule"],
        ),
        Peer("vllm:cache_write", "cache_write", "vllm", ("vllm",), sizes=_SIZES["cache_write"]),
        Peer("flash_qla:gated_delta_rule", "gated_delta_rule", "flash_qla", ("flash-qla",)),
        Peer("flashinfer:gated_delta_rule", "gated_delta_rule", "flashinfer", _FLASHINFER),
        Peer("flashinfer:attention_decode", "attention", "flashinfer", _FLASHINFER),
        Peer("flashinfer:attention_prefill", "attention", "flashinfer", _FLASHINFER),
        Peer("transformers:gated_delta_rule", "gated_delta_rule", "transformers", _TRANSFORMERS, cpu="all"),
        Peer("transformers:gated_delta_rule_recurrent", "gated_delta_rule", "transformers", _TRANSFORMERS, cpu="all"),
        Peer("flash_attn:rope", "rope", "flash_attn.layers", _FLASH),
        Peer("flash_attn:rope_qk", "rope_qk", "flash_attn.layers", _FLASH),
        Peer("flash_attn:attention", "attention", "flash_attn.flash_attn_interface", _FLASH),
        Peer("flash_attn_4:attention", "attention", "flash_attn.cute", ("flash-attn-4",)),
        Peer("liger_kernel:rope_qk", "rope_qk", "liger_kernel", ("liger-kernel",), cpu="all"),
        *(
            Peer(f"{package}:{op}", op, module, distributions, cpu=cpu, sizes=_SIZES["loss"])
            for package, module, distributions, cpu, ops in _LOSSES
            for op in ops
        ),
        Peer("torch:varlen_attn", "attention", "torch.nn.attention.varlen", _TORCH),
        Peer("torch:flex_attention", "attention", "torch.nn.attention.flex_attention", _TORCH, cpu="forward"),
        Peer("torch:jagged_sdpa", "attention", "torch.nested", _TORCH, cpu="all"),
        Peer("torch:grouped_mm", "grouped_mm", "torch", _TORCH, cpu="all"),
        Peer("torch:compiled_rope", "rope", "torch", _TORCH, cpu="all"),
        Peer("torch:compiled_conv1d", "causal_conv1d", "torch", _TORCH, cpu="all"),
    )
}


def peers_of(package: str) -> list[str]:
    """The names of a package's kernels with an adapter."""
    return [name for name in PEERS if name.partition(":")[0] == package]


def distribution_of(module: str) -> str:
    """The distribution to install for a module that an adapter imports; "" if none does."""
    distributions = (p.distributions[0] for p in PEERS.values() if module == p.required_module.partition(".")[0])
    return next(distributions, "")
