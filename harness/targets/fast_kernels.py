"""Packages of fast kernels, in whose place models have fallbacks: which are installed, and a process without them."""

import sys
from importlib.util import find_spec

PACKAGES = ("causal_conv1d", "fla", "flash_attn", "flash_attn_interface", "kernels", "mamba_ssm", "xformers")


def installed() -> tuple[str, ...]:
    """Those that can be imported here."""
    return tuple(name for name in PACKAGES if find_spec(name) is not None)


def hide() -> None:
    """From here on none of them is found in this process; call it before a model's module is imported."""
    for name in PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment]  # import and find_spec both take it as absent
