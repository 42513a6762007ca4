"""Programs of packproof that run code which is not trusted, each in a process forked from a zygote."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.process.programs.process import ProgramProcess
    from packproof.harness.process.programs.service import become_zygote, serve
    from packproof.harness.process.wire import Frame, InternalWorkerError

__all__ = ["Frame", "InternalWorkerError", "ProgramProcess", "become_zygote", "serve"]

export(
    sys.modules[__name__],
    {
        "packproof.harness.process.programs.process": ("ProgramProcess",),
        "packproof.harness.process.programs.service": ("become_zygote", "serve"),
        "packproof.harness.process.wire": ("Frame", "InternalWorkerError"),
    },
)
