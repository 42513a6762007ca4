"""A module in a process of its own."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.models.apart.messages import ModuleSource
    from packproof.models.apart.module_process import ModuleProcess, is_interpreted

__all__ = ["ModuleProcess", "ModuleSource", "is_interpreted"]

export(
    sys.modules[__name__],
    {
        "packproof.models.apart.messages": ("ModuleSource",),
        "packproof.models.apart.module_process": ("ModuleProcess", "is_interpreted"),
    },
)
