"""The domain of a kernel that declares none, inferred from the calls it accepts and refuses."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.check.probing.probe import InferredDomain, probe

__all__ = ["InferredDomain", "probe"]

export(sys.modules[__name__], {"packproof.harness.check.probing.probe": ("InferredDomain", "probe")})
