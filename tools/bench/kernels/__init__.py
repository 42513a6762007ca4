"""Timing of kernels and of their baselines, at sizes at which they were first proven correct."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.bench.kernels.bench import BenchRequest
    from packproof.bench.kernels.command import BenchOutcome, Outputs, choose_layouts, run_command
    from packproof.bench.kernels.layouts import from_file
    from packproof.bench.kernels.markdown import table
    from packproof.bench.kernels.settings import options_from_text, sizes_from_text

__all__ = [
    "BenchOutcome",
    "BenchRequest",
    "Outputs",
    "choose_layouts",
    "from_file",
    "options_from_text",
    "run_command",
    "sizes_from_text",
    "table",
]

export(
    sys.modules[__name__],
    {
        "packproof.bench.kernels.bench": ("BenchRequest",),
        "packproof.bench.kernels.command": ("BenchOutcome", "Outputs", "choose_layouts", "run_command"),
        "packproof.bench.kernels.layouts": ("from_file",),
        "packproof.bench.kernels.markdown": ("table",),
        "packproof.bench.kernels.settings": ("options_from_text", "sizes_from_text"),
    },
)
