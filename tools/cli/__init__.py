"""The command line."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.cli.main import resume, run
    from packproof.cli.printing import print_safely

__all__ = ["print_safely", "resume", "run"]

export(
    sys.modules[__name__],
    {
        "packproof.cli.main": ("resume", "run"),
        "packproof.cli.printing": ("print_safely",),
    },
)
