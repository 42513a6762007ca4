"""The call of a kernel: the names in its signature, and an adapter to write if they are not the op's."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.calling.signature import OFFSETS, call_signature, catches_all, named_metadata
    from packproof.properties.calling.suggested_adapter import suggested_adapter

__all__ = ["OFFSETS", "call_signature", "catches_all", "named_metadata", "suggested_adapter"]

export(
    sys.modules[__name__],
    {
        "packproof.properties.calling.signature": ("OFFSETS", "call_signature", "catches_all", "named_metadata"),
        "packproof.properties.calling.suggested_adapter": ("suggested_adapter",),
    },
)
