"""The kernels of a run: imported, with their ops, promises and domains; those of packproof itself."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS, BuiltinKernel
    from packproof.harness.check.targets.target import CheckTarget, open_target, resolve_op, worker_for

__all__ = ["BUILTIN_KERNELS", "BuiltinKernel", "CheckTarget", "open_target", "resolve_op", "worker_for"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.check.targets.builtin_kernels": ("BUILTIN_KERNELS", "BuiltinKernel"),
        "packproof.harness.check.targets.target": ("CheckTarget", "open_target", "resolve_op", "worker_for"),
    },
)
