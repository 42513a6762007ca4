"""A module in a process of its own: where it is built and called, and where its laws are judged."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.models.apart.messages import ModuleSource
    from packproof.models.apart.module_process import ModuleProcess, fault_text, is_interpreted

__all__ = ["ModuleProcess", "ModuleSource", "fault_text", "is_interpreted"]

export(
    sys.modules[__name__],
    {
        "packproof.models.apart.messages": ("ModuleSource",),
        "packproof.models.apart.module_process": ("ModuleProcess", "fault_text", "is_interpreted"),
    },
)
