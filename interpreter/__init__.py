"""Triton's interpreter, repaired, with a memory sanitizer and guards around a kernel's memory."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.interpreter.batch.launch import BatchingSanitizer
    from packproof.interpreter.in_use import (
        UnfitInterpreterError,
        is_interpreting,
        misfit,
        repair_if_used,
        repair_or_refuse,
    )
    from packproof.interpreter.launching.launches import watch_launches
    from packproof.interpreter.launching.specialisations import watch_specialisations
    from packproof.interpreter.memory_guard import (
        FENCE_BYTES,
        POISON,
        Guard,
        GuardedTensor,
        distinct_elements,
        is_poison,
    )
    from packproof.interpreter.repair import install
    from packproof.interpreter.sanitizer import Sanitizer
    from packproof.interpreter.tuning.triton_tuner import draw_configurations
    from packproof.interpreter.tuning.use import use_configuration

__all__ = [
    "FENCE_BYTES",
    "POISON",
    "BatchingSanitizer",
    "Guard",
    "GuardedTensor",
    "Sanitizer",
    "UnfitInterpreterError",
    "distinct_elements",
    "draw_configurations",
    "install",
    "is_interpreting",
    "is_poison",
    "misfit",
    "repair_if_used",
    "repair_or_refuse",
    "use_configuration",
    "watch_launches",
    "watch_specialisations",
]

export(
    sys.modules[__name__],
    {
        "packproof.interpreter.batch.launch": ("BatchingSanitizer",),
        "packproof.interpreter.in_use": (
            "UnfitInterpreterError",
            "is_interpreting",
            "misfit",
            "repair_if_used",
            "repair_or_refuse",
        ),
        "packproof.interpreter.launching.launches": ("watch_launches",),
        "packproof.interpreter.launching.specialisations": ("watch_specialisations",),
        "packproof.interpreter.memory_guard": (
            "FENCE_BYTES",
            "Guard",
            "GuardedTensor",
            "POISON",
            "distinct_elements",
            "is_poison",
        ),
        "packproof.interpreter.repair": ("install",),
        "packproof.interpreter.sanitizer": ("Sanitizer",),
        "packproof.interpreter.tuning.triton_tuner": ("draw_configurations",),
        "packproof.interpreter.tuning.use": ("use_configuration",),
    },
)
