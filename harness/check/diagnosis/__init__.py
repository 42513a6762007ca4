"""What a failure looks like: where and by how much a tensor is wrong, and which sequence leaked into another."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.check.diagnosis.failing_call import script_of_replay

__all__ = ["script_of_replay"]

export(sys.modules[__name__], {"packproof.harness.check.diagnosis.failing_call": ("script_of_replay",)})
