"""Packages of fast kernels with a slower fallback in models: find the installed ones, and hide them from a process."""

import sys
from importlib.util import find_spec

FAST_KERNEL_PACKAGES = (
    "causal_conv1d",
    "fla",
    "flash_attn",
    "flash_attn_interface",
    "kernels",
    "mamba_ssm",
    "xformers",
)


def installed_packages() -> tuple[str, ...]:
    """The packages importable here."""
    return tuple(name for name in FAST_KERNEL_PACKAGES if find_spec(name) is not None)


def hide_packages() -> None:
    """Make every package of the list appear absent in this process. Call it before a model's module is imported."""
    for name in FAST_KERNEL_PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment]  # import and find_spec both take it as absent
