"""The walls between a kernel and the machine, kept by the operating system."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.process.walls.catalogue import WALLS, Wall, probe_walls, require_walls
    from packproof.harness.process.walls.enclosure import Enclosure, start_enclosed_fork
    from packproof.harness.process.walls.isolation import Isolation
    from packproof.harness.process.walls.probes import judge_identity

__all__ = [
    "WALLS",
    "Enclosure",
    "Isolation",
    "Wall",
    "judge_identity",
    "probe_walls",
    "require_walls",
    "start_enclosed_fork",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.process.walls.catalogue": ("WALLS", "Wall", "probe_walls", "require_walls"),
        "packproof.harness.process.walls.enclosure": ("Enclosure", "start_enclosed_fork"),
        "packproof.harness.process.walls.isolation": ("Isolation",),
        "packproof.harness.process.walls.probes": ("judge_identity",),
    },
)
