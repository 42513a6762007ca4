"""Chooses configurations of autotuned kernels without timing them, so that a check runs many: Triton's, and those of
other languages.
"""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.interpreter.tuning.triton_tuner import choose_configurations, draw_configurations
    from packproof.interpreter.tuning.use import use_configuration

__all__ = ["choose_configurations", "draw_configurations", "use_configuration"]

export(
    sys.modules[__name__],
    {
        "packproof.interpreter.tuning.triton_tuner": ("choose_configurations", "draw_configurations"),
        "packproof.interpreter.tuning.use": ("use_configuration",),
    },
)
