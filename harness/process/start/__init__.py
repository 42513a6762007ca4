"""How a command starts."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.process.start.command_line import hand_over, read_in_fork, resumable
    from packproof.harness.process.start.early_zygote import fork_early_zygote, settle_early_zygote
    from packproof.harness.process.start.environment import is_fresh, missing_resource, restart_with_environment
    from packproof.harness.process.start.exit import exit_at_once
    from packproof.harness.process.start.imports import fast_imports
    from packproof.harness.process.start.signals import restore_child_signal, treat_sigterm_as_interrupt

__all__ = [
    "exit_at_once",
    "fast_imports",
    "fork_early_zygote",
    "hand_over",
    "is_fresh",
    "missing_resource",
    "read_in_fork",
    "restart_with_environment",
    "restore_child_signal",
    "resumable",
    "settle_early_zygote",
    "treat_sigterm_as_interrupt",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.process.start.command_line": ("hand_over", "read_in_fork", "resumable"),
        "packproof.harness.process.start.early_zygote": (
            "fork_early_zygote",
            "settle_early_zygote",
        ),
        "packproof.harness.process.start.environment": ("is_fresh", "missing_resource", "restart_with_environment"),
        "packproof.harness.process.start.exit": ("exit_at_once",),
        "packproof.harness.process.start.imports": ("fast_imports",),
        "packproof.harness.process.start.signals": ("restore_child_signal", "treat_sigterm_as_interrupt"),
    },
)
