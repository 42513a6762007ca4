"""One call of a kernel in this process: placement, differentiation, calling modes, and how its exceptions are
classified. Also the primitive by which all rooms fork this process.
"""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.process.execution.execute import InProcess
    from packproof.harness.process.execution.fork import Fork, start_fork
    from packproof.harness.process.execution.self_test import require_sound_judgement

__all__ = ["Fork", "InProcess", "require_sound_judgement", "start_fork"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.process.execution.execute": ("InProcess",),
        "packproof.harness.process.execution.fork": ("Fork", "start_fork"),
        "packproof.harness.process.execution.self_test": ("require_sound_judgement",),
    },
)
