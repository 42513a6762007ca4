"""Timing of kernels and of their baselines, at sizes at which they were first proven correct."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.bench.kernels.bench import BenchRequest
    from packproof.bench.kernels.command import BenchOutcome, Outputs, choose_layouts, run_command
    from packproof.bench.kernels.cost import costs
    from packproof.bench.kernels.implementations import Implementation
    from packproof.bench.kernels.layouts import from_file
    from packproof.bench.kernels.markdown import table
    from packproof.bench.kernels.proof import spot_check
    from packproof.bench.kernels.settings import Setting, options_from_text, setting, sizes_from_text

__all__ = [
    "BenchOutcome",
    "BenchRequest",
    "Implementation",
    "Outputs",
    "Setting",
    "choose_layouts",
    "costs",
    "from_file",
    "options_from_text",
    "run_command",
    "setting",
    "sizes_from_text",
    "spot_check",
    "table",
]

export(
    sys.modules[__name__],
    {
        "packproof.bench.kernels.bench": ("BenchRequest",),
        "packproof.bench.kernels.command": ("BenchOutcome", "Outputs", "choose_layouts", "run_command"),
        "packproof.bench.kernels.cost": ("costs",),
        "packproof.bench.kernels.implementations": ("Implementation",),
        "packproof.bench.kernels.layouts": ("from_file",),
        "packproof.bench.kernels.markdown": ("table",),
        "packproof.bench.kernels.proof": ("spot_check",),
        "packproof.bench.kernels.settings": ("Setting", "options_from_text", "setting", "sizes_from_text"),
    },
)
