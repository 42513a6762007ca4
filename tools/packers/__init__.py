"""The proof of what makes packs of documents: packers and collators."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.packers.check import check_packs, run_packer_check
    from packproof.packers.request import load_function, packer_request

__all__ = ["check_packs", "load_function", "packer_request", "run_packer_check"]

export(
    sys.modules[__name__],
    {
        "packproof.packers.check": ("check_packs", "run_packer_check"),
        "packproof.packers.request": ("load_function", "packer_request"),
    },
)
